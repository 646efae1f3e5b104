/* Columns of JSON texts to rows of text, and rows to records of a record batch. Needs basics.h.

   library.py and wire/outputs/rows.py give each output as many bytes as its inputs can fill. */

struct texts {
    const byte *at, *end;
    int64_t terminator;    /* the byte after each text; no text contains it */
    const int64_t *counts; /* of members, if each item is an object: names, values from the next */
};

struct column {
    const byte *fixed;
    int64_t size;
    int64_t source; /* of the text after the fixed one; -1 for none: a key or a value ends here */
};

static byte *put_part(byte *to, const byte *from, int64_t size)
{
    memcpy(to, from, size);
    return to + size;
}

/* The next text of a source; NULL if there is none. */
static byte *put_text(byte *to, struct texts *source)
{
    const byte *start = source->at;
    const byte *end = memchr(start, source->terminator, source->end - start);
    if (!end)
        return NULL;
    source->at = end + 1;
    return put_part(to, start, end - start);
}

static byte *put_object(byte *to, struct texts *names)
{
    int64_t n = *names->counts++;
    *to++ = '{';
    for (int64_t i = 0; i < n; i++) {
        if (i)
            *to++ = ',';
        if (!(to = put_text(to, names)))
            return NULL;
        *to++ = ':';
        if (!(to = put_text(to, names + 1)))
            return NULL;
    }
    *to++ = '}';
    return to;
}

/* Writes rows: for each column its fixed text and the next text of its source. Columns with the
   same source take turns. `ends` has the position after each key and value.
   Returns the number of bytes, or -1 if a source does not have exactly the texts needed. */
EXPORT int64_t write_rows(const struct column *columns, int64_t n_columns, struct texts *sources,
                          int64_t n_sources, int64_t n_rows, byte *out, int64_t *ends)
{
    byte *to = out;
    for (int64_t row = 0; row < n_rows; row++)
        for (const struct column *column = columns; column < columns + n_columns; column++) {
            to = put_part(to, column->fixed, column->size);
            if (column->source < 0) {
                *ends++ = to - out;
                continue;
            }
            struct texts *source = sources + column->source;
            to = source->counts ? put_object(to, source) : put_text(to, source);
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
    return put_part(put_varint(to, span[1] - span[0]), text + span[0], span[1] - span[0]);
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
        to = put_part(to, headers, headers_size);
    }
    return to - out;
}
