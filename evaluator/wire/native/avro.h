/* Records in Avro to JSON, by the tables of mapping/avro.py. Needs record_sets.h and texts.h.
   Types are not recursive, and each value but a null in a union takes at least a byte. */

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

static const byte *read_avro(const struct texts *, struct mapping *, int64_t type, bool is_wanted,
                             const byte *at, const byte *end);

static const byte *read_avro_string(struct mapping *map, bool is_wanted, const byte *at,
                                    const byte *end)
{
    const byte *text;
    int64_t size;
    at = read_bytes(at, end, 0, &text, &size);
    return at && is_utf8(text, size) && (!is_wanted || put_quoted(map, text, size)) ? at : NULL;
}

static const byte *read_avro_blocks(const struct texts *texts, struct mapping *map,
                                    const struct text_type *type, bool is_wanted, const byte *at,
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
            const struct text_part *part = texts->parts + type->first;
            const byte *key = NULL;
            if (is_map) {
                if (!(at = read_bytes(at, end, 0, &key, &size)) || !is_utf8(key, size))
                    return NULL;
                const struct text_part *named = part_of_key(texts, type, key, size);
                part = named ? named : part;
            }
            bool is_written = is_wanted && part->use & WANTED;
            if (is_written && n_written++ && !put_byte(map, ','))
                return NULL;
            if (is_written && key && !(put_quoted(map, key, size) && put_byte(map, ':')))
                return NULL;
            if (!(at = read_avro(texts, map, part->type, is_written, at, end)))
                return NULL;
        }
    }
    return at && (!is_wanted || put_byte(map, is_map ? '}' : ']')) ? at : NULL;
}

static const byte *read_avro_record(const struct texts *texts, struct mapping *map,
                                    const struct text_type *type, bool is_wanted, const byte *at,
                                    const byte *end)
{
    const struct text_part *first = texts->parts + type->first;
    if (is_wanted && !put_byte(map, '{'))
        return NULL;
    for (const struct text_part *each = first; at && each < first + type->n; each++) {
        bool is_written = is_wanted && each->use & WANTED;
        if (is_written && !put_name(texts, map, each))
            return NULL;
        at = read_avro(texts, map, each->type, is_written, at, end);
    }
    return at && (!is_wanted || put_byte(map, '}')) ? at : NULL;
}

static const byte *read_avro(const struct texts *texts, struct mapping *map, int64_t number,
                             bool is_wanted, const byte *at, const byte *end)
{
    const struct text_type *type = texts->types + number;
    const struct text_part *part = texts->parts + type->first;
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
        value = type->kind == AVRO_FLOAT ? 4 : 8;
        if (end - at < value || (is_wanted && !put_real(map, value == 4, at)))
            return NULL;
        return at + value;
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
        return !is_wanted || put_quoted(map, texts->names + part->name, part->size) ? at : NULL;
    case AVRO_RECORD:
        return read_avro_record(texts, map, type, is_wanted, at, end);
    case AVRO_UNION:
        at = read_varint(at, end, &value);
        if (!at || value < 0 || value >= type->n)
            return NULL;
        return read_avro(texts, map, part[value].type, is_wanted, at, end);
    default:
        return read_avro_blocks(texts, map, type, is_wanted, at, end);
    }
}
