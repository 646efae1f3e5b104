/* JSON records of foreign topics to canonical messages, by a plan of mapping/plan.py. Needs
   mapped_values.h.

   Sound, not complete: the message of an accepted record has the bytes that mapping/messages.py
   gives; a refused record is mapped there. Whatever is written is compared with the end of the output
   first. */

/* --- reading --- */

static const byte *read_members(struct mapping *, const struct node *, const byte **slots,
                                const byte *at, int depth);

static const byte *read_rows(struct mapping *map, const struct node *node, const byte *at, int depth)
{
    int64_t n = 0;
    if (depth >= MAX_NESTING || *at++ != '[')
        return NULL;
    while (next_item(&at, ']', &n)) {
        const byte **row = map->rows + (n - 1) * map->n_row_slots;
        if (n > MAX_CANDIDATES)
            return NULL;
        if (n > map->n_cleared) {
            memset(row, 0, map->n_row_slots * sizeof *row);
            map->n_cleared = n;
        }
        if (node->form == ARRAY)
            row[node->row_slot] = at;
        at = node->form == ARRAY ? skip_value(at, depth) : read_members(map, node, row, at, depth);
        if (!at)
            return NULL;
    }
    if (n == 0 || (map->n_rows && map->n_rows != n))
        return NULL;
    map->n_rows = n;
    return at;
}

static const struct node *find_node(const struct mapping *map, const struct node *node,
                                    const byte *name, int64_t size)
{
    const struct node *first = map->nodes + node->first;
    for (const struct node *each = first; each < first + node->n; each++)
        if (each->size == size && is_same(map->texts + each->name, name, size))
            return each;
    return NULL;
}

/* Keeps where the values of named members are. A repeated one is refused: the last counts. */
static const byte *read_members(struct mapping *map, const struct node *node, const byte **slots,
                                const byte *at, int depth)
{
    const byte *name;
    int64_t n = 0, size;
    if (depth >= MAX_NESTING || *at++ != '{')
        return NULL;
    while (next_item(&at, '}', &n)) {
        if (!(at = read_name(at, &name, &size)))
            return NULL;
        const struct node *inner = find_node(map, node, name, size);
        if (inner && slots[inner->slot])
            return NULL;
        if (inner)
            slots[inner->slot] = at;
        if (!inner || is_null(at) || (inner->form == ONE_VALUE && !inner->n))
            at = skip_value(at, depth);
        else if (inner->form == ONE_VALUE)
            at = read_members(map, inner, slots, at, depth + 1);
        else
            at = read_rows(map, inner, at, depth + 1);
        if (!at)
            return NULL;
    }
    return at;
}

/* --- writing --- */

/* What the paths of a member find: a position in the record or its key; NULL if it is missing.
   `*is_known` is false if it is elsewhere. */
static const byte *find_value(const struct mapping *map, const struct member *member,
                              const byte **slots, bool *is_known)
{
    const int64_t *path = map->paths + member->first_path;
    *is_known = true;
    for (const int64_t *end = path + member->n_paths; path < end; path++)
        if (*path == OF_KEY) {
            if (map->key_sizes[map->at] >= 0)
                return map->keys + map->key_starts[map->at];
        } else if (*path == OTHERWISE) {
            *is_known = false;
            return NULL;
        } else if (slots[*path] && !is_null(slots[*path])) {
            return slots[*path];
        }
    return NULL;
}

static bool put_value(struct mapping *map, const struct member *member, const byte *at)
{
    int64_t value;
    switch (member->kind) {
    case TEXT:
        return at == map->keys + map->key_starts[map->at] ? put_key(map) : put_text(map, at);
    case NUMBER:
        return put_decimal(map, at, double_of_bits(member->add));
    case INTEGER:
        return read_whole(at, &value) && !__builtin_add_overflow(value, member->add, &value) &&
               put_int(map, value);
    case BOOLEAN:
        return *at == 't' ? put(map, "true", 4) : *at == 'f' && put(map, "false", 5);
    case TIME:
        return put_time(map, member, at);
    case ISO_TIME:
        return put_iso(map, at);
    default:
        return put_choice(map, member, at);
    }
}

static bool put_column(struct mapping *map, const struct member *column)
{
    const struct member *first = column + 1, *last = first + column->n_choices;
    byte *begun = map->to;
    int64_t n_missing = 0, n = map->n_rows;
    bool is_known, has_brackets = column->per;
    if (!n || !put(map, map->texts + column->text, column->size))
        return false;
    for (int64_t i = 0; i < n; i++) {
        if (i && !put_byte(map, ','))
            return false;
        for (const struct member *each = first; each < last; each++) {
            if (has_brackets && !put_byte(map, each == first ? '[' : ','))
                return false;
            const byte *at = find_value(map, each, map->rows + i * map->n_row_slots, &is_known);
            if (!is_known)
                return false;
            bool is_missing = !at && each->n_paths;
            n_missing += is_missing;
            if (!is_missing && !put_value(map, each, at))
                return false;
        }
        if (has_brackets && !put_byte(map, ']'))
            return false;
    }
    if (n_missing == n && !column->is_required) { /* it is one member then */
        map->to = begun;
        return true;
    }
    return !n_missing && put_byte(map, ']');
}

/* Grades by candidate. A candidate that is given twice is refused: the last grade counts. */
static bool put_grades(struct mapping *map, const struct member *grades)
{
    enum { MOST = 64 };
    const byte *ids[MOST];
    int64_t sizes[MOST];
    bool is_known;
    if (!map->n_rows || map->n_rows > MOST || !put(map, map->texts + grades->text, grades->size))
        return false;
    for (int64_t i = 0; i < map->n_rows; i++) {
        const byte **row = map->rows + i * map->n_row_slots;
        if (i && !put_byte(map, ','))
            return false;
        ids[i] = map->to;
        for (const struct member *each = grades + 1; each <= grades + 2; each++) {
            const byte *at = find_value(map, each, row, &is_known);
            if ((!at && each->n_paths) || (each > grades + 1 && !put_byte(map, ':')) ||
                !put_value(map, each, at))
                return false;
            sizes[i] = each > grades + 1 ? sizes[i] : map->to - ids[i];
        }
        for (int64_t j = 0; j < i; j++)
            if (sizes[j] == sizes[i] && is_same(ids[j], ids[i], sizes[i]))
                return false;
    }
    return put_byte(map, '}');
}

static bool put_row_numbers(struct mapping *map, const struct member *member)
{
    if (!map->n_rows || !put(map, map->texts + member->text, member->size))
        return false;
    for (int64_t n = 1; n <= map->n_rows; n++)
        if (!put_int(map, n) || !put_byte(map, n < map->n_rows ? ',' : ']'))
            return false;
    return true;
}

/* A member that a record has once. In a text each has a comma first, which the first of an object
   does not need. */
static bool put_once(struct mapping *map, const struct member *member)
{
    bool is_known, is_first = map->to[-1] == '{';
    const byte *at = find_value(map, member, map->slots, &is_known);
    if (!at && member->n_paths)
        return is_known && !member->is_required;
    if (member->kind == PRESENT)
        return true;
    return put(map, map->texts + member->text + is_first, member->size - is_first) &&
           put_value(map, member, at);
}

static bool put_message(struct mapping *map)
{
    byte *object = NULL;
    const struct member *end = map->members + map->n_members;
    for (const struct member *each = map->members; each < end; each++) {
        bool is_put = true;
        switch (each->kind) {
        case FIXED:
            is_put = put(map, map->texts + each->text, each->size);
            break;
        case RECORD_TIME:
            if (map->times_ms && map->times_ms[map->at] >= 0)
                is_put = put(map, map->texts + each->text, each->size) &&
                         put_int(map, map->times_ms[map->at]);
            break;
        case COLUMN:
            is_put = put_column(map, each);
            each += each->n_choices;
            break;
        case GRADES:
            is_put = put_grades(map, each);
            each += each->n_choices;
            break;
        case ROW_NUMBERS:
            is_put = put_row_numbers(map, each);
            break;
        case OBJECT:
            object = map->to;
            is_put = put(map, map->texts + each->text, each->size);
            break;
        case OBJECT_END:
            if (map->to[-1] == '{')
                map->to = object;
            else
                is_put = put_byte(map, '}');
            break;
        default:
            is_put = put_once(map, each);
        }
        if (!is_put)
            return false;
    }
    return put_byte(map, 0); /* a NUL byte follows each message */
}

/* What follows the frame of a schema registry: a byte 0 or 1, and an id of 4 or 16 bytes. */
static const byte *after_frame(const byte *at, const byte *end)
{
    int64_t size = *at > 1 ? 0 : *at ? 17 : 5;
    return end - at < size ? at : at + size;
}

/* Maps records; record i is text[starts[i]] to before text[ends[i]], which is NUL. */
EXPORT void map_records(const byte *text, const int64_t *starts, const int64_t *ends, int64_t n,
                        struct mapping *map)
{
    byte *out = map->to;
    for (int64_t i = 0; i < n; i++) {
        byte *begun = map->to;
        map->at = i;
        map->n_rows = map->n_cleared = 0;
        memset(map->slots, 0, map->n_slots * sizeof *map->slots);
        const byte *at = skip_space(after_frame(text + starts[i], text + ends[i]));
        at = read_members(map, map->nodes, map->slots, at, 1);
        bool is_mapped = at && skip_space(at) == text + ends[i] && put_message(map);
        map->starts[i] = begun - out;
        is_mapped = is_mapped && map->to - begun - 1 <= MAX_MESSAGE_BYTES;
        map->sizes[i] = is_mapped ? map->to - begun - 1 : -1;
        if (!is_mapped)
            map->to = begun;
    }
}
