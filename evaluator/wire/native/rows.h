/* Columns -> rows of JSON text. Needs json.h.

   A row is, column by column, a fixed text and the next item of a source. Several columns may
   share a source and take turns. wire/native/rows.py says how much room the rows need at most. */

enum source_kind { STRING_ITEMS, TEXT_ITEMS, INTEGER_ITEMS, RANK_ITEMS, GRADE_ITEMS, TOP_ITEMS };

struct source {
    int64_t kind;
    const byte *text;       /* of each item up to its SEPARATOR */
    const int64_t *numbers; /* INTEGER_ITEMS, RANK_ITEMS: the items; GRADE_ITEMS: how many each has */
    const int64_t *grades;  /* GRADE_ITEMS: whole ones */
    const byte *scores;     /* TOP_ITEMS: JSON numbers or null, each followed by one byte */
    int64_t n_top;
};

struct column {
    const byte *fixed;
    int64_t size;
    int64_t source;
};

static byte *put_bytes(byte *to, const byte *from, int64_t size)
{
    memcpy(to, from, size);
    return to + size;
}

/* The bytes from `*from` to before `end`, which `*from` is then behind. */
static byte *put_up_to(byte *to, const byte **from, byte end)
{
    const byte *start = *from;
    while (**from != end)
        ++*from;
    return put_bytes(to, start, (*from)++ - start);
}

static byte *put_escape(byte *to, byte c)
{
    static const char letters[32] = {[8] = 'b', [9] = 't', [10] = 'n', [12] = 'f', [13] = 'r'};
    static const char digits[] = "0123456789abcdef";
    *to++ = '\\';
    if (c >= 0x20 || letters[c]) {
        *to++ = c >= 0x20 ? c : (byte)letters[c];
        return to;
    }
    to = put_bytes(to, (const byte *)"u00", 3);
    *to++ = digits[c >> 4];
    *to++ = digits[c & 15];
    return to;
}

static byte *put_string(byte *to, const byte **from)
{
    const byte *at = *from;
    *to++ = '"';
    for (;;) {
        const byte *start = at;
        at = skip_plain(at);
        to = put_bytes(to, start, at - start);
        if (*at == SEPARATOR)
            break;
        to = put_escape(to, *at++);
    }
    *to++ = '"';
    *from = at + 1;
    return to;
}

static byte *put_integer(byte *to, int64_t value)
{
    byte digits[20], *first = digits + sizeof digits;
    uint64_t left = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do
        *--first = '0' + left % 10;
    while (left /= 10);
    if (value < 0)
        *to++ = '-';
    return put_bytes(to, first, digits + sizeof digits - first);
}

static byte *put_grades(byte *to, struct source *source)
{
    int64_t n = *source->numbers++;
    *to++ = '{';
    for (int64_t i = 0; i < n; i++) {
        if (i)
            *to++ = ',';
        to = put_string(to, &source->text);
        *to++ = ':';
        to = put_integer(to, *source->grades++);
    }
    *to++ = '}';
    return to;
}

static byte *put_top(byte *to, struct source *source)
{
    *to++ = '[';
    for (int64_t i = 0; i < source->n_top; i++) {
        if (i)
            *to++ = ',';
        *to++ = '[';
        to = put_string(to, &source->text);
        *to++ = ',';
        to = put_up_to(to, &source->scores, ',');
        *to++ = ']';
    }
    *to++ = ']';
    return to;
}

static byte *put_item(byte *to, struct source *source)
{
    switch (source->kind) {
    case STRING_ITEMS:
        return put_string(to, &source->text);
    case TEXT_ITEMS:
        return put_up_to(to, &source->text, SEPARATOR);
    case RANK_ITEMS:
        if (!*source->numbers) {
            source->numbers++;
            return put_bytes(to, (const byte *)"null", 4);
        }
        return put_integer(to, *source->numbers++);
    case INTEGER_ITEMS:
        return put_integer(to, *source->numbers++);
    case GRADE_ITEMS:
        return put_grades(to, source);
    default:
        return put_top(to, source);
    }
}

/* Writes rows, each with SEPARATOR behind it; the number of bytes. */
EXPORT int64_t write_rows(const struct column *columns, int64_t n_columns, struct source *sources,
                          int64_t n_rows, const byte *end, int64_t end_size, byte *out)
{
    byte *to = out;
    for (int64_t row = 0; row < n_rows; row++) {
        for (int64_t i = 0; i < n_columns; i++) {
            to = put_bytes(to, columns[i].fixed, columns[i].size);
            to = put_item(to, sources + columns[i].source);
        }
        to = put_bytes(to, end, end_size);
        *to++ = SEPARATOR;
    }
    return to - out;
}
