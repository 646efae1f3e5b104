/* Reads records of `settled` to the columns that alarms need. Needs json.h and names.h.

   Sound, not complete, like the decoder of messages: it accepts nothing that wire/outputs/settled.py
   refuses, and stops before the first record that it does not accept. */

enum { MAX_WATCHED = 64, LEAST_VALUE = -1024, MOST_VALUE = 1 << 20 };

/* Columns of a row; the first ones are members that are integers. A watermark record has a
   watermark from 0 on. */
enum settled_column {
    S_N,
    S_TASK,
    S_EVENT_MS,
    S_SETTLED_MS,
    S_WATERMARK_MS,
    N_SETTLED_INTEGERS,
    S_TRACE_START = N_SETTLED_INTEGERS,
    S_TRACE_SIZE,
    S_NODE_START,
    S_NODE_SIZE,
    S_TRACE_CRC,
    S_LABEL,
    S_IS_JUDGED,
    N_SETTLED_COLUMNS,
};

enum settled_member {
    S_TRACE_ID = N_SETTLED_INTEGERS,
    S_NODE_ID,
    S_MODEL,
    S_VARIANT,
    S_SEGMENTS,
    S_GRADES,
    S_VALUES,
    S_SILENT,
    N_SETTLED_MEMBERS,
};

static const struct known_name settled_names[N_SETTLED_MEMBERS] = {
    [S_N] = NAME("n"),
    [S_TASK] = NAME("task"),
    [S_EVENT_MS] = NAME("event_time_ms"),
    [S_SETTLED_MS] = NAME("settled_time_ms"),
    [S_WATERMARK_MS] = NAME("watermark_ms"),
    [S_TRACE_ID] = NAME("trace_id"),
    [S_NODE_ID] = NAME("node_id"),
    [S_MODEL] = NAME("model"),
    [S_VARIANT] = NAME("variant"),
    [S_SEGMENTS] = NAME("segments"),
    [S_GRADES] = NAME("grades"),
    [S_VALUES] = NAME("values"),
    [S_SILENT] = NAME("silent"),
};

struct watched {
    struct known_name ranker, measure;
};

struct settled {
    struct names *labels; /* model, variant and segments as in the record, each with SEPARATOR */
    int64_t n_rows, n_values, ids_size, n_watched;
    const struct watched *watched; /* [n_watched], at most MAX_WATCHED */
    int64_t *columns;              /* [n_rows, N_SETTLED_COLUMNS] */
    int64_t *places;               /* [n_values]: row * n_watched + number of what is watched */
    double *values;
    byte *ids; /* trace_id and node_id of each row, each with a NUL byte, after an empty one */
};

struct settled_row {
    struct settled *out;
    int64_t *columns;
    const byte *labels[3], *label_ends[3];
    uint64_t rankers; /* bits of what is watched of the rankers that have occurred */
    uint32_t seen;
    bool silent;
};

static const byte *read_id(const byte *at, struct settled *out, int64_t *span)
{
    byte *start = out->ids + out->ids_size, *to = start;
    at = read_string(at, &to);
    *to = 0;
    span[0] = out->ids_size;
    span[1] = to - start;
    out->ids_size += span[1] + 1;
    return at;
}

static const byte *skip_segment(void *row, const byte *name, int64_t size, const byte *at)
{
    (void)row, (void)name, (void)size;
    return skip_string(at);
}

static const byte *read_grade(void *into, const byte *name, int64_t size, const byte *at)
{
    struct settled_row *row = into;
    double grade;
    (void)name, (void)size;
    row->columns[S_IS_JUDGED] = 1;
    at = read_number(at, &grade);
    return at && grade >= 0 && grade <= MAX_GRADE ? at : NULL;
}

static bool is_name(const struct known_name *known, const byte *name, int64_t size)
{
    return find_name(known, 1, name, size) == 0;
}

/* Reads the values of a ranker; *left* are those that are watched. */
static const byte *read_measures(struct settled_row *row, uint64_t left, const byte *at)
{
    struct settled *out = row->out;
    const byte *name;
    int64_t n = 0, size;
    uint64_t watched = left;
    if (*at++ != '{')
        return NULL;
    while (next_item(&at, '}', &n)) {
        int64_t i = 0;
        if (!(at = read_name(at, &name, &size)))
            return NULL;
        while (i < out->n_watched &&
               !(watched >> i & 1 && is_name(&out->watched[i].measure, name, size)))
            i++;
        if (i == out->n_watched) {
            if (!(at = skip_value(at, 3)))
                return NULL;
            continue;
        }
        double *value = out->values + out->n_values;
        if (!(left >> i & 1) || !(at = read_number(at, value)) || *value < LEAST_VALUE ||
            *value > MOST_VALUE)
            return NULL;
        left &= ~((uint64_t)1 << i);
        out->places[out->n_values++] = out->n_rows * out->n_watched + i;
    }
    return at;
}

static const byte *read_ranker(void *into, const byte *name, int64_t size, const byte *at)
{
    struct settled_row *row = into;
    uint64_t watched = 0;
    for (int64_t i = 0; i < row->out->n_watched; i++)
        if (is_name(&row->out->watched[i].ranker, name, size))
            watched |= (uint64_t)1 << i;
    if (!watched)
        return skip_value(at, 2);
    if (row->rankers & watched)
        return NULL;
    row->rankers |= watched;
    return read_measures(row, watched, at);
}

static const byte *read_settled_member(void *into, const byte *name, int64_t size, const byte *at)
{
    struct settled_row *row = into;
    int member = find_name(settled_names, N_SETTLED_MEMBERS, name, size);
    if (member < 0)
        return skip_value(at, 1);
    if (row->seen >> member & 1)
        return NULL;
    if (member == S_WATERMARK_MS && is_null(at))
        return skip_word(at, "null");
    row->seen |= (uint32_t)1 << member;
    const byte *end;
    switch (member) {
    case S_TRACE_ID:
        return read_id(at, row->out, row->columns + S_TRACE_START);
    case S_NODE_ID:
        return read_id(at, row->out, row->columns + S_NODE_START);
    case S_MODEL:
    case S_VARIANT:
    case S_SEGMENTS:
        end = member == S_SEGMENTS ? scan_object(at, skip_segment, row) : skip_string(at);
        row->labels[member - S_MODEL] = at;
        row->label_ends[member - S_MODEL] = end;
        return end;
    case S_GRADES:
        return scan_object(at, read_grade, row);
    case S_VALUES:
        return scan_object(at, read_ranker, row);
    case S_SILENT:
        row->silent = *at == 't';
        return skip_word(at, row->silent ? "true" : "false");
    default:
        return read_integer(at, 0, row->columns + member);
    }
}

static int64_t label_of(const struct settled_row *row, struct names *labels)
{
    byte *text = labels->text + labels->size, *to = text;
    bool repeated;
    for (int i = 0; i < 3; i++) {
        int64_t size = row->label_ends[i] - row->labels[i];
        if (size)
            memcpy(to, row->labels[i], size);
        to += size;
        *to++ = SEPARATOR;
    }
    return number_of(labels, text, to - text, &repeated);
}

EXPORT void read_settled(const byte *text, const int64_t *starts, const int64_t *ends,
                         int64_t first, int64_t last, struct settled *out)
{
    const uint32_t required = 1u << S_N | 1u << S_TASK;
    uint32_t crc_table[256];
    fill_crc_table(crc_table, CRC_32);
    out->ids[out->ids_size++] = 0;
    for (int64_t i = first; i < last; i++) {
        int64_t columns[N_SETTLED_COLUMNS] = {[S_WATERMARK_MS] = -1};
        struct settled_row row = {.out = out, .columns = columns};
        if (!scan_message(text + starts[i], text + ends[i], read_settled_member, &row) ||
            (row.seen & required) != required ||
            !(row.seen & (1u << S_SETTLED_MS | 1u << S_WATERMARK_MS)))
            return;
        const byte *trace_id = out->ids + columns[S_TRACE_START];
        columns[S_TRACE_CRC] = crc_by_table(crc_table, trace_id, trace_id + columns[S_TRACE_SIZE]);
        columns[S_LABEL] = label_of(&row, out->labels);
        columns[S_IS_JUDGED] &= !row.silent;
        memcpy(out->columns + out->n_rows * N_SETTLED_COLUMNS, columns, sizeof columns);
        out->n_rows++;
    }
}
