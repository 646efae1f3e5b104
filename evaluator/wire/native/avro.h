/* Records in Avro to JSON of the members that paths name, by the tables of mapping/avro_texts.py.
   Needs record_sets.h and mapped_values.h.

   Sound, not complete: a refused record is decoded by mapping/avro.py. Every read is compared with the
   end of the record, every write with the end of the output. Types are not recursive, and each value
   but a null in a union takes at least a byte. */

enum avro_kind {
    AVRO_NULL,
    AVRO_BOOLEAN,
    AVRO_LONG,
    AVRO_FLOAT,
    AVRO_DOUBLE,
    AVRO_BYTES,
    AVRO_STRING,
    AVRO_FIXED, /* n: its size */
    AVRO_ENUM,
    AVRO_RECORD,
    AVRO_UNION,
    AVRO_ARRAY, /* one part: its items */
    AVRO_MAP,   /* parts: the values of all other keys, then of the named ones */
};

struct avro_type {
    int64_t kind, first, n; /* parts */
};

/* A field, branch or symbol; `is_wanted`: whether a path leads through it. */
struct avro_part {
    int64_t name, size, type, is_wanted;
};

struct avro {
    const struct avro_type *types;
    const struct avro_part *parts;
    const byte *texts;
    int64_t root;
    byte *to, *end;
    int64_t *starts, *sizes; /* of the texts; -1: refused */
};

static bool is_utf8(const byte *at, int64_t size)
{
    for (const byte *end = at + size; at < end; at++) {
        if (*at < 0x80)
            continue;
        int n = *at >= 0xf0 ? 3 : *at >= 0xe0 ? 2 : 1;
        if (*at < 0xc2 || *at > 0xf4 || end - at <= n || (*at == 0xe0 && at[1] < 0xa0) ||
            (*at == 0xed && at[1] > 0x9f) || (*at == 0xf0 && at[1] < 0x90) ||
            (*at == 0xf4 && at[1] > 0x8f))
            return false;
        for (; n; n--)
            if ((*++at & 0xc0) != 0x80)
                return false;
    }
    return true;
}

static bool put_quoted(struct mapping *map, const byte *at, int64_t size)
{
    if (!put_byte(map, '"'))
        return false;
    for (const byte *end = at + size; at < end; at++) {
        const byte *from = at;
        while (at < end && is_plain[*at])
            at++;
        if (!put(map, from, at - from))
            return false;
        if (at == end)
            break;
        if (!put_escaped(map, *at))
            return false;
    }
    return put_byte(map, '"');
}

static const byte *read_avro(const struct avro *, struct mapping *, int64_t type, bool is_wanted,
                             const byte *at, const byte *end);

static const byte *read_avro_string(struct mapping *map, bool is_wanted, const byte *at,
                                    const byte *end)
{
    const byte *text;
    int64_t size;
    at = read_bytes(at, end, 0, &text, &size);
    return at && is_utf8(text, size) && (!is_wanted || put_quoted(map, text, size)) ? at : NULL;
}

static const byte *read_avro_double(struct mapping *map, bool is_float, bool is_wanted,
                                    const byte *at, const byte *end)
{
    int size = is_float ? 4 : 8;
    double value;
    float small;
    if (end - at < size)
        return NULL;
    memcpy(is_float ? (void *)&small : (void *)&value, at, size);
    value = is_float ? small : value;
    if (is_wanted && (value - value != 0.0 || (value == 0.0 && __builtin_signbit(value)) ||
                      !put_double(map, value)))
        return NULL;
    return at + size;
}

/* The part of a map for a key. */
static const struct avro_part *part_of_key(const struct avro *avro, const struct avro_type *type,
                                           const byte *key, int64_t size)
{
    const struct avro_part *first = avro->parts + type->first;
    for (const struct avro_part *each = first + 1; each < first + type->n; each++)
        if (each->size == size && memcmp(avro->texts + each->name, key, size) == 0)
            return each;
    return first;
}

static const byte *read_avro_blocks(const struct avro *avro, struct mapping *map,
                                    const struct avro_type *type, bool is_wanted, const byte *at,
                                    const byte *end)
{
    bool is_map = type->kind == AVRO_MAP;
    int64_t n, size, n_written = 0;
    if (is_wanted && !put_byte(map, is_map ? '{' : '['))
        return NULL;
    while ((at = read_varint(at, end, &n)) && n) {
        if (n == INT64_MIN || (n < 0 && !(at = read_varint(at, end, &size))))
            return NULL;
        for (n = n < 0 ? -n : n; n; n--) {
            const struct avro_part *part = avro->parts + type->first;
            const byte *key = NULL;
            if (is_map) {
                if (!(at = read_bytes(at, end, 0, &key, &size)) || !is_utf8(key, size))
                    return NULL;
                part = part_of_key(avro, type, key, size);
            }
            bool is_written = is_wanted && part->is_wanted;
            if (is_written && n_written++ && !put_byte(map, ','))
                return NULL;
            if (is_written && key && !(put_quoted(map, key, size) && put_byte(map, ':')))
                return NULL;
            if (!(at = read_avro(avro, map, part->type, is_written, at, end)))
                return NULL;
        }
    }
    return at && (!is_wanted || put_byte(map, is_map ? '}' : ']')) ? at : NULL;
}

static const byte *read_avro_record(const struct avro *avro, struct mapping *map,
                                    const struct avro_type *type, bool is_wanted, const byte *at,
                                    const byte *end)
{
    const struct avro_part *first = avro->parts + type->first;
    int64_t n_written = 0;
    if (is_wanted && !put_byte(map, '{'))
        return NULL;
    for (const struct avro_part *each = first; at && each < first + type->n; each++) {
        bool is_written = is_wanted && each->is_wanted;
        if (is_written && ((n_written++ && !put_byte(map, ',')) ||
                           !put_quoted(map, avro->texts + each->name, each->size) ||
                           !put_byte(map, ':')))
            return NULL;
        at = read_avro(avro, map, each->type, is_written, at, end);
    }
    return at && (!is_wanted || put_byte(map, '}')) ? at : NULL;
}

static const byte *read_avro(const struct avro *avro, struct mapping *map, int64_t number,
                             bool is_wanted, const byte *at, const byte *end)
{
    const struct avro_type *type = avro->types + number;
    const struct avro_part *part = avro->parts + type->first;
    const byte *text;
    int64_t value;
    switch (type->kind) {
    case AVRO_NULL:
        return !is_wanted || put(map, "null", 4) ? at : NULL;
    case AVRO_BOOLEAN:
        if (at == end || *at > 1 || (is_wanted && !put(map, *at ? "true" : "false", 5 - *at)))
            return NULL;
        return at + 1;
    case AVRO_LONG:
        at = read_varint(at, end, &value);
        return at && (!is_wanted || put_int(map, value)) ? at : NULL;
    case AVRO_FLOAT:
    case AVRO_DOUBLE:
        return read_avro_double(map, type->kind == AVRO_FLOAT, is_wanted, at, end);
    case AVRO_BYTES: /* a path that finds bytes is refused, or exact as a decimal */
        return is_wanted ? NULL : read_bytes(at, end, 0, &text, &value);
    case AVRO_STRING:
        return read_avro_string(map, is_wanted, at, end);
    case AVRO_FIXED:
        return is_wanted || type->n < 0 || end - at < type->n ? NULL : at + type->n;
    case AVRO_ENUM:
        at = read_varint(at, end, &value);
        if (!at || value < 0 || value >= type->n)
            return NULL;
        part += value;
        return !is_wanted || put_quoted(map, avro->texts + part->name, part->size) ? at : NULL;
    case AVRO_RECORD:
        return read_avro_record(avro, map, type, is_wanted, at, end);
    case AVRO_UNION:
        at = read_varint(at, end, &value);
        if (!at || value < 0 || value >= type->n)
            return NULL;
        return read_avro(avro, map, part[value].type, is_wanted, at, end);
    default:
        return read_avro_blocks(avro, map, type, is_wanted, at, end);
    }
}

/* Writes records as JSON; record i is data[starts[i]] to before data[ends[i]]. */
EXPORT void avro_to_json(const byte *data, const int64_t *starts, const int64_t *ends, int64_t n,
                         struct avro *avro)
{
    struct mapping map = {.to = avro->to, .end = avro->end};
    byte *out = avro->to;
    for (int64_t i = 0; i < n; i++) {
        byte *begun = map.to;
        const byte *at = read_avro(avro, &map, avro->root, true, data + starts[i], data + ends[i]);
        bool is_read = at == data + ends[i] && put_byte(&map, 0);
        avro->starts[i] = begun - out;
        avro->sizes[i] = is_read ? map.to - begun - 1 : -1;
        if (!is_read)
            map.to = begun;
    }
    avro->to = map.to;
}
