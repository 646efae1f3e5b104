/* Columns to rows of JSON text, and rows to records of a record batch. Needs basics.h.

   library.py and wire/outputs/rows.py give each output as many bytes as its inputs can fill. */

enum { OF_TEXTS, OF_NUMBERS, OF_RANKS, OF_NAMES };

struct source {
    int64_t kind;
    const byte *at, *end;      /* texts with a byte after each, int64 numbers, or int32 codes */
    int64_t terminator;        /* of texts: the byte after each; no text contains it */
    const byte *pool;          /* of names: text i, with one byte after it, is from ends[i] */
    const int64_t *ends;       /* to before ends[i + 1] */
    int64_t n_names;
    const int64_t *counts;     /* of members, if each item is a list; their values come next */
    int64_t pairs;             /* whether they are pairs in a list, not members of an object */
};

struct column {
    const byte *fixed;
    int64_t size;
    int64_t source; /* of the text after the fixed one; -1 for none: a key or a value ends here */
};

/* Most texts are short, and a call of memcpy takes longer than two copies of 8 bytes that overlap. */
static byte *put_fixed(byte *to, const byte *from, int64_t size)
{
    if (size >= 8 && size <= 16) {
        memcpy(to, from, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else if (size >= 8) {
        memcpy(to, from, size);
    } else {
        for (int64_t i = 0; i < size; i++)
            to[i] = from[i];
    }
    return to + size;
}

static byte *put_number(byte *to, int64_t number)
{
    byte digits[20], *first = digits + 20;
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    do
        *--first = '0' + left % 10;
    while (left /= 10);
    if (number < 0)
        *--first = '-';
    return put_fixed(to, first, digits + 20 - first);
}

/* The next item of a source; NULL if there is none. */
static byte *put_item(byte *to, struct source *source)
{
    const byte *at = source->at;
    int64_t width = source->kind == OF_NAMES ? 4 : 8;
    if (source->kind == OF_TEXTS) {
        const byte *end = memchr(at, source->terminator, source->end - at);
        if (!end)
            return NULL;
        source->at = end + 1;
        return put_fixed(to, at, end - at);
    }
    if (source->end - at < width)
        return NULL;
    source->at += width;
    if (source->kind == OF_NAMES) {
        int32_t name;
        memcpy(&name, at, sizeof name);
        if (name < 0 || name >= source->n_names)
            return NULL;
        const int64_t *span = source->ends + name;
        return put_fixed(to, source->pool + span[0], span[1] - span[0] - 1);
    }
    int64_t number;
    memcpy(&number, at, sizeof number);
    if (!number && source->kind == OF_RANKS)
        return put_fixed(to, (const byte *)"null", 4);
    return put_number(to, number);
}

/* {name:value,...} or [[name,value],...] */
static byte *put_members(byte *to, struct source *names)
{
    int64_t n = *names->counts++;
    bool pairs = names->pairs;
    *to++ = pairs ? '[' : '{';
    for (int64_t i = 0; i < n; i++) {
        if (i)
            *to++ = ',';
        if (pairs)
            *to++ = '[';
        if (!(to = put_item(to, names)))
            return NULL;
        *to++ = pairs ? ',' : ':';
        if (!(to = put_item(to, names + 1)))
            return NULL;
        if (pairs)
            *to++ = ']';
    }
    *to++ = pairs ? ']' : '}';
    return to;
}

/* Writes rows from `size` on: for each column its fixed text and the next item of its source. Columns
   with the same source take turns. `ends` has the position after each key and value.
   Returns the last position, or -1 if a source does not have exactly the items needed. */
EXPORT int64_t write_rows(const struct column *columns, int64_t n_columns, struct source *sources,
                          int64_t n_sources, int64_t n_rows, int64_t size, byte *out, int64_t *ends)
{
    byte *to = out + size;
    for (int64_t row = 0; row < n_rows; row++)
        for (const struct column *column = columns; column < columns + n_columns; column++) {
            to = put_fixed(to, column->fixed, column->size);
            if (column->source < 0) {
                *ends++ = to - out;
                continue;
            }
            struct source *source = sources + column->source;
            to = source->counts ? put_members(to, source) : put_item(to, source);
            if (!to)
                return -1;
        }
    for (int64_t i = 0; i < n_sources; i++)
        if (sources[i].at != sources[i].end)
            return -1;
    return to - out;
}

static int64_t varint_size(int64_t value)
{
    int64_t size = 1;
    for (uint64_t left = (uint64_t)value << 1; left >>= 7;)
        size++;
    return size;
}

/* A signed varint (zigzag) of a number from 0 on. */
static byte *put_varint(byte *to, int64_t value)
{
    uint64_t left = (uint64_t)value << 1;
    for (; left > 0x7f; left >>= 7)
        *to++ = left | 0x80;
    *to++ = left;
    return to;
}

static int64_t field_size(const int64_t *span)
{
    return span[0] < 0 ? 1 : varint_size(span[1] - span[0]) + span[1] - span[0];
}

static byte *put_field(byte *to, const byte *text, const int64_t *span)
{
    if (span[0] < 0) { /* null, of size -1 */
        *to++ = 1;
        return to;
    }
    return put_fixed(put_varint(to, span[1] - span[0]), text + span[0], span[1] - span[0]);
}

/* Writes the records of a record batch of magic 2, all of its first timestamp. A row of `spans` is
   the start and end of a key and of a value. Returns the number of bytes. */
EXPORT int64_t frame_records(const byte *text, const int64_t *spans, int64_t n_rows,
                             const byte *headers, int64_t headers_size, byte *out)
{
    byte *to = out;
    for (int64_t row = 0; row < n_rows; row++, spans += 4) {
        int64_t body = 2 + varint_size(row) + field_size(spans) + field_size(spans + 2);
        to = put_varint(to, body + headers_size);
        *to++ = 0; /* attributes */
        *to++ = 0; /* after the first timestamp */
        to = put_varint(to, row);
        to = put_field(put_field(to, text, spans), text, spans + 2);
        to = put_fixed(to, headers, headers_size);
    }
    return to - out;
}
