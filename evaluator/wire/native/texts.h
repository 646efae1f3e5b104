/* Records with a schema to JSON of the members that paths name: what avro.h and protobuf.h share.
   Needs mapped_values.h. The tables are those of mapping/framed_texts.py.

   Sound, not complete: a refused record is decoded by Python objects. Every read is compared with the
   end of the record, every write with the end of the output. */

struct text_type {
    int64_t kind, first, n; /* parts */
    int64_t wire;           /* of Protobuf */
};

/* A field, branch, symbol or key; WANTED: a path leads through it. `oneof` is the part of this type
   that stands for its oneof, or 0. */
struct text_part {
    int64_t name, size, type, use, number, oneof;
};
enum { WANTED = 1, REPEATED = 2, PRESENCE = 4 };

struct texts {
    const struct text_type *types;
    const struct text_part *parts;
    const byte *names;
    int64_t root, is_protobuf;
    byte *to, *end;
    int64_t *starts, *sizes; /* of the texts; -1: refused */
    const byte **slots;      /* by part */
    int64_t n_elements;
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

/* The name of a member, after a comma if it is not the first. */
static bool put_name(const struct texts *texts, struct mapping *map, const struct text_part *part)
{
    return (map->to[-1] == '{' || put_byte(map, ',')) &&
           put_quoted(map, texts->names + part->name, part->size) && put_byte(map, ':');
}

/* A finite number of 4 or 8 bytes; minus zero is left to Python, which has two forms of it. */
static bool put_real(struct mapping *map, bool is_float, const byte *at)
{
    double value;
    float small;
    memcpy(is_float ? (void *)&small : (void *)&value, at, is_float ? 4 : 8);
    value = is_float ? small : value;
    return value - value == 0.0 && !(value == 0.0 && __builtin_signbit(value)) && put_double(map, value);
}

/* The part from the second on with this name; NULL if there is none. */
static const struct text_part *part_of_key(const struct texts *texts, const struct text_type *type,
                                           const byte *key, int64_t size)
{
    const struct text_part *first = texts->parts + type->first;
    for (const struct text_part *each = first + 1; each < first + type->n; each++)
        if (each->size == size && memcmp(texts->names + each->name, key, size) == 0)
            return each;
    return NULL;
}
