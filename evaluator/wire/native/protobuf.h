/* Records in Protobuf to JSON, by the tables of mapping/protobuf_types.py. Needs texts.h.

   Types are a tree, as the paths are, so none is in itself. A message is read twice: where its fields
   are, and what they have. Refused are groups, messages and texts that are given twice, two members of
   a oneof, and elements of a field that do not follow each other. */

enum protobuf_kind { /* those of scalars have n bits */
    PROTOBUF_SIGNED,
    PROTOBUF_UNSIGNED,
    PROTOBUF_ZIGZAG,
    PROTOBUF_BOOL,
    PROTOBUF_REAL,
    PROTOBUF_ENUM, /* parts: its symbols */
    PROTOBUF_STRING,
    PROTOBUF_BYTES, /* of no path */
    PROTOBUF_MESSAGE,
    PROTOBUF_TIMESTAMP, /* parts: seconds, nanos */
    PROTOBUF_WRAPPER,   /* one part */
    PROTOBUF_MAP,       /* parts: its entry, which has a key and a value, then the named keys */
};
enum { VARINT, FIXED_64, SIZED, FIXED_32 = 5 };
enum { MAX_ELEMENTS = 100000 };

/* Reads a value without its tag: an integer, or where its bytes are and their number. */
static const byte *read_value(const byte *at, const byte *end, int64_t wire, uint64_t *bits,
                              const byte **text)
{
    const byte *begun = at;
    *bits = wire == FIXED_64 ? 8 : 4;
    if (wire == VARINT || wire == SIZED)
        at = read_bits(at, end, bits);
    if (!at || wire == VARINT)
        return at;
    *text = at;
    bool is_odd = wire == SIZED ? at - begun > 5 : wire != FIXED_64 && wire != FIXED_32;
    return is_odd || *bits > (uint64_t)(end - at) ? NULL : at + *bits;
}

/* The part of a type with this number; NULL if there is none. */
static const struct text_part *part_of(const struct texts *texts, const struct text_type *type,
                                       int64_t number)
{
    const struct text_part *first = texts->parts + type->first;
    for (const struct text_part *each = first; each < first + type->n; each++)
        if (each->number == number)
            return each;
    return NULL;
}

static const byte *read_tag(const byte *at, const byte *end, uint64_t *tag)
{
    const byte *begun = at;
    at = read_bits(at, end, tag);
    return at && at - begun <= 5 && *tag >= 8 && *tag <= UINT32_MAX ? at : NULL;
}

/* Keeps where the fields of a message are: a value, or the tag of the first element. */
static bool find_fields(const struct texts *texts, const struct text_type *type, const byte *at,
                        const byte *end)
{
    const byte **slots = texts->slots + type->first, *text;
    const struct text_part *last = NULL, *part;
    uint64_t tag, bits;
    memset(slots, 0, type->n * sizeof *slots);
    for (; at < end; last = part) {
        const byte *begun = at, *value = at = read_tag(at, end, &tag);
        if (!at || !(at = read_value(at, end, tag & 7, &bits, &text)))
            return false;
        if (!(part = part_of(texts, type, tag >> 3)))
            continue;
        const byte **slot = slots + (part - texts->parts - type->first);
        int64_t wire = texts->types[part->type].wire;
        bool is_repeated = part->use & REPEATED, is_packed = is_repeated && (tag & 7) == SIZED;
        if ((tag & 7) != (uint64_t)wire && !is_packed)
            return false;
        if (*slot && (is_repeated ? last != part : wire == SIZED))
            return false;
        if (part->oneof) {
            const byte **owner = slots + part->oneof;
            if (*owner && *owner != (const byte *)part)
                return false;
            *owner = (const byte *)part;
        }
        if (!is_repeated || !*slot)
            *slot = is_repeated ? begun : value;
    }
    return true;
}

static bool put_message_of(struct texts *, struct mapping *, const struct text_type *,
                           const byte *at, const byte *end);

/* Writes a value without its tag; at NULL the default. The next position; NULL to refuse. */
static const byte *put_protobuf(struct texts *texts, struct mapping *map, int64_t number,
                                const byte *at, const byte *end)
{
    const struct text_type *type = texts->types + number;
    const struct text_part *part;
    const byte *text = (const byte *)"\0\0\0\0\0\0\0", *next = text;
    uint64_t bits = 0;
    bool is_put;
    if (at && !(next = read_value(at, end, type->wire, &bits, &text)))
        return NULL;
    if (type->wire != VARINT && type->wire != SIZED)
        memcpy(&bits, text, type->n / 8);
    switch (type->kind) {
    case PROTOBUF_SIGNED:
        is_put = put_int(map, type->n == 32 ? (int32_t)bits : (int64_t)bits);
        break;
    case PROTOBUF_UNSIGNED:
        bits = type->n == 32 ? (uint32_t)bits : bits;
        is_put = bits <= INT64_MAX && put_int(map, bits);
        break;
    case PROTOBUF_ZIGZAG:
        is_put = put_int(map, zigzag(type->n == 32 ? (uint32_t)bits : bits));
        break;
    case PROTOBUF_BOOL:
        is_put = bits ? put(map, "true", 4) : put(map, "false", 5);
        break;
    case PROTOBUF_REAL:
        is_put = put_real(map, type->n == 32, text);
        break;
    case PROTOBUF_ENUM:
        part = part_of(texts, type, (int32_t)bits);
        is_put = part ? put_quoted(map, texts->names + part->name, part->size)
                      : put_int(map, (int32_t)bits);
        break;
    case PROTOBUF_STRING:
        is_put = is_utf8(text, bits) && put_quoted(map, text, bits);
        break;
    default:
        is_put = put_message_of(texts, map, type, text, text + bits);
    }
    return is_put ? next : NULL;
}

/* Writes an entry of a map if its key has a name. */
static const byte *put_entry(struct texts *texts, struct mapping *map, const struct text_type *type,
                             const byte *at, const byte *end)
{
    const struct text_part *entry = texts->parts + type->first;
    const struct text_type *pair = texts->types + entry->type;
    const struct text_part *parts = texts->parts + pair->first;
    const byte **slots = texts->slots + pair->first, *text, *next;
    uint64_t size;
    byte *begun = map->to;
    if (!(next = read_value(at, end, SIZED, &size, &text)) ||
        !find_fields(texts, pair, text, next) ||
        !put_protobuf(texts, map, parts->type, slots[0], next))
        return NULL;
    bool is_text = *begun == '"'; /* names need no escapes, so a key with one has none */
    const struct text_part *named =
        part_of_key(texts, type, begun + is_text, map->to - begun - 2 * is_text);
    map->to = begun;
    if (named && (texts->slots[named - texts->parts] || !put_name(texts, map, named)))
        return NULL; /* of two entries with a key the last one counts */
    if (named)
        texts->slots[named - texts->parts] = at;
    if (!put_protobuf(texts, map, parts[1].type, slots[1], next))
        return NULL;
    map->to = named ? map->to : begun; /* others are only checked */
    return next;
}

/* Writes the elements of a field, which follow each other, from the tag of the first one on. */
static bool put_elements(struct texts *texts, struct mapping *map, const struct text_part *part,
                         const byte *at, const byte *end)
{
    const struct text_type *type = texts->types + part->type;
    bool is_map = type->kind == PROTOBUF_MAP;
    uint64_t tag, size;
    memset(texts->slots + type->first, 0, is_map ? type->n * sizeof *texts->slots : 0);
    if (!put_byte(map, is_map ? '{' : '['))
        return false;
    while (at < end) {
        const byte *next = read_tag(at, end, &tag), *to = end;
        if ((int64_t)(tag >> 3) != part->number)
            break;
        bool is_packed = (tag & 7) == SIZED && type->wire != SIZED;
        if (is_packed)
            to = read_value(next, end, SIZED, &size, &next);
        for (bool is_left = !is_packed || next < to; is_left; is_left = is_packed && next < to) {
            if (texts->n_elements++ == MAX_ELEMENTS)
                return false;
            if (is_map)
                next = put_entry(texts, map, type, next, to);
            else if (map->to[-1] == '[' || put_byte(map, ','))
                next = put_protobuf(texts, map, part->type, next, to);
            else
                return false;
            if (!next)
                return false;
        }
        at = next;
    }
    return put_byte(map, is_map ? '}' : ']');
}

static bool put_message_of(struct texts *texts, struct mapping *map, const struct text_type *type,
                           const byte *at, const byte *end)
{
    const struct text_part *first = texts->parts + type->first;
    const byte **slots = texts->slots + type->first;
    uint64_t seconds = 0, nanos = 0;
    int64_t value;
    if (!find_fields(texts, type, at, end))
        return false;
    if (type->kind == PROTOBUF_WRAPPER)
        return put_protobuf(texts, map, first->type, slots[0], end);
    if (type->kind == PROTOBUF_TIMESTAMP)
        return (!slots[0] || read_bits(slots[0], end, &seconds)) &&
               (!slots[1] || read_bits(slots[1], end, &nanos)) &&
               !__builtin_mul_overflow((int64_t)seconds, 1000000000, &value) &&
               !__builtin_add_overflow(value, (int32_t)nanos, &value) && put_int(map, value);
    if (!put_byte(map, '{'))
        return false;
    for (const struct text_part *each = first; each < first + type->n; each++) {
        const byte *slot = slots[each - first];
        byte *begun = map->to;
        if (!(each->use & WANTED) || (!slot && each->use & PRESENCE))
            continue;
        if (!put_name(texts, map, each))
            return false;
        byte *written = map->to;
        if (!(each->use & REPEATED ? put_elements(texts, map, each, slot ? slot : end, end)
                                   : put_protobuf(texts, map, each->type, slot, end) != NULL))
            return false;
        bool is_text = texts->types[each->type].kind == PROTOBUF_STRING && !(each->use & REPEATED);
        if (is_text && !(each->use & PRESENCE) && map->to - written == 2)
            map->to = begun; /* an empty text without presence is missing */
    }
    return put_byte(map, '}');
}

/* Writes records as JSON; record i is data[starts[i]] to before data[ends[i]]. */
EXPORT void texts_to_json(const byte *data, const int64_t *starts, const int64_t *ends, int64_t n,
                          struct texts *texts)
{
    struct mapping map = {.to = texts->to};
    for (int64_t i = 0; i < n; i++) {
        byte *begun = map.to;
        bool is_long = texts->end - begun > MAX_MESSAGE_BYTES;
        map.end = is_long ? begun + MAX_MESSAGE_BYTES + 1 : texts->end;
        texts->n_elements = 0;
        const byte *at = data + starts[i], *end = data + ends[i];
        bool is_read = texts->is_protobuf
                           ? put_message_of(texts, &map, texts->types + texts->root, at, end)
                           : read_avro(texts, &map, texts->root, true, at, end) == end;
        is_read = is_read && put_byte(&map, 0);
        texts->starts[i] = begun - texts->to;
        texts->sizes[i] = is_read ? map.to - begun - 1 : -1;
        if (!is_read)
            map.to = begun;
    }
    texts->to = map.to;
}
