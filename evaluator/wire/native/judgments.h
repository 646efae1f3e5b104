/* Decodes judgments to columns. Needs json.h. */

struct judgments {
    struct names *candidates;
    int64_t n_rows, strings_size, n_grades;
    int64_t *timestamps_ms, *grade_counts; /* by row */
    byte *key_hashes;                      /* KEY_HASH_BYTES of each row */
    byte *has_judgment_id;                 /* by row */
    int32_t *ids;                          /* numbers of the candidate ids */
    double *grades;                        /* NaN: withdrawn */
    byte *strings;                         /* trace_id, node_id, source, judgment_id of each row */
};

enum judgment_member {
    J_TRACE_ID,
    J_NODE_ID,
    J_SOURCE,
    J_JUDGMENT_ID,
    J_N_STRINGS,
    J_SCHEMA_VERSION = J_N_STRINGS,
    J_TIMESTAMP_MS,
    J_GRADES,
    J_SUBTOPICS,
    N_JUDGMENT_MEMBERS,
};

static const struct known_name judgment_names[N_JUDGMENT_MEMBERS] = {
    [J_TRACE_ID] = NAME("trace_id"),
    [J_NODE_ID] = NAME("node_id"),
    [J_SOURCE] = NAME("source"),
    [J_JUDGMENT_ID] = NAME("judgment_id"),
    [J_SCHEMA_VERSION] = NAME("schema_version"),
    [J_TIMESTAMP_MS] = NAME("timestamp_ms"),
    [J_GRADES] = NAME("grades"),
    [J_SUBTOPICS] = NAME("subtopics"),
};

struct judgment {
    struct judgments *out;
    const byte *end; /* of the text */
    const byte *strings[J_N_STRINGS];
    uint32_t seen, given;
    int64_t timestamp_ms, n_grades;
};

static const byte *read_grades(struct judgment *row, const byte *at)
{
    struct judgments *out = row->out;
    bool repeated;
    if (*at++ != '{')
        return NULL;
    while (next_item(&at, '}', &row->n_grades)) {
        double *grade = out->grades + out->n_grades + row->n_grades - 1;
        int32_t *id = out->ids + out->n_grades + row->n_grades - 1;
        if (row->n_grades > MAX_CANDIDATES ||
            !(at = read_numbered(at, row->end, out->candidates, id, &repeated)))
            return NULL;
        if (repeated) /* the reference path takes the last grade, at the place of the first */
            return NULL;
        at = skip_space(at);
        if (*at != ':')
            return NULL;
        at = skip_space(at + 1);
        if (is_null(at))
            *grade = -1;
        if (!(at = is_null(at) ? skip_word(at, "null") : read_number(at, grade)) ||
            *grade > MAX_GRADE)
            return NULL;
        if (*grade < 0)
            *grade = double_of_bits(0x7ff8000000000000);
    }
    return row->n_grades ? at : NULL;
}

static const byte *read_judgment_member(void *into, const byte *name, int64_t size, const byte *at)
{
    struct judgment *row = into;
    int member = find_name(judgment_names, N_JUDGMENT_MEMBERS, name, size);
    if (member < 0)
        return skip_value(at, 1);
    if (row->seen >> member & 1)
        return NULL;
    row->seen |= (uint32_t)1 << member;
    if (is_null(at))
        return skip_word(at, "null");
    row->given |= (uint32_t)1 << member;
    switch (member) {
    case J_TRACE_ID:
    case J_NODE_ID:
    case J_SOURCE:
    case J_JUDGMENT_ID:
        row->strings[member] = at;
        return skip_string(at);
    case J_SCHEMA_VERSION:
        return *at == '1' ? at + 1 : NULL;
    case J_TIMESTAMP_MS:
        return read_integer(at, 0, &row->timestamp_ms);
    case J_GRADES:
        return read_grades(row, at);
    default:
        return NULL;
    }
}

EXPORT void decode_judgments(const byte *text, const int64_t *starts, const int64_t *ends,
                             int64_t first, int64_t last, struct judgments *out)
{
    const uint32_t required = 1u << J_SCHEMA_VERSION | 1u << J_TRACE_ID | 1u << J_NODE_ID |
                              1u << J_GRADES;
    for (int64_t i = first; i < last; i++) {
        struct judgment row = {.out = out, .end = text + ends[i], .timestamp_ms = NO_TIMESTAMP};
        const byte *texts = out->strings + out->strings_size;
        out->candidates->row++;
        if (!scan_message(text + starts[i], text + ends[i], read_judgment_member, &row) ||
            (row.given & required) != required ||
            !put_texts(row.strings, J_N_STRINGS, MAX_NAME_BYTES, out->strings, &out->strings_size))
            return;
        put_key_hash(texts, out->key_hashes + out->n_rows * KEY_HASH_BYTES);
        out->timestamps_ms[out->n_rows] = row.timestamp_ms;
        out->grade_counts[out->n_rows] = row.n_grades;
        out->has_judgment_id[out->n_rows] = row.given >> J_JUDGMENT_ID & 1;
        out->n_grades += row.n_grades;
        out->n_rows++;
    }
}
