/* JSON strings, lists and objects. Needs basics.h and numbers.h. */

enum {
    MAX_MESSAGE_BYTES = 262144,
    MAX_NESTING = 60, /* 4 below the limit of the models, as depth is counted more simply */
    MAX_CANDIDATES = 1000,
    MAX_FEATURES = 256,
    MAX_ID_BYTES = 256,
    MAX_NAME_BYTES = 256,
    MAX_GRADE = 31,
    MAX_SCORERS = 8,
    MAX_SEGMENTS = 8,
    SEPARATOR = 0x1f, /* ends each string of a column; in JSON it is always escaped */
    SET_END = 0x1e,   /* ends each name that has a number; likewise */
};

static const int64_t NO_TIMESTAMP = -1;

static const byte *skip_word(const byte *at, const char *word)
{
    while (*word)
        if (*at++ != (byte)*word++)
            return NULL;
    return at;
}

/* --- strings --- */

/* Whether a byte of a string is literal: not a quote, a backslash or a control character (NUL). */
static const bool is_plain[256] = {
    [0x20 ... 0x21] = 1,
    [0x23 ... 0x5b] = 1,
    [0x5d ... 0xff] = 1,
};

static inline const byte *skip_plain(const byte *at)
{
    while (is_plain[*at])
        at++;
    return at;
}

/* The same for a string of a text with this end: words of eight bytes are compared at once. */
static inline const byte *skip_plain_words(const byte *at, const byte *end)
{
    const uint64_t ones = 0x0101010101010101, high_bits = 0x80 * ones;
    while (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && end - at >= 8) {
        uint64_t word, quote, backslash;
        memcpy(&word, at, 8);
        quote = word ^ '"' * ones;
        backslash = word ^ '\\' * ones;
        uint64_t found = (((word - ' ' * ones) & ~word) | ((quote - ones) & ~quote) |
                          ((backslash - ones) & ~backslash)) & high_bits;
        if (found) /* its lowest bit is of a byte that is not plain */
            return at + __builtin_ctzll(found) / 8;
        at += 8;
    }
    return skip_plain(at);
}

static const byte *read_hex4(const byte *at, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, at++) {
        byte low = *at | 0x20;
        uint32_t digit = is_digit(*at) ? *at - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : 16;
        if (digit == 16)
            return NULL;
        *code = *code << 4 | digit;
    }
    return at;
}

static int put_utf8(byte *to, uint32_t code)
{
    if (code < 0x80) {
        to[0] = code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = 0xc0 | code >> 6;
        to[1] = 0x80 | (code & 0x3f);
        return 2;
    }
    if (code < 0x10000) {
        to[0] = 0xe0 | code >> 12;
        to[1] = 0x80 | (code >> 6 & 0x3f);
        to[2] = 0x80 | (code & 0x3f);
        return 3;
    }
    to[0] = 0xf0 | code >> 18;
    to[1] = 0x80 | (code >> 12 & 0x3f);
    to[2] = 0x80 | (code >> 6 & 0x3f);
    to[3] = 0x80 | (code & 0x3f);
    return 4;
}

/* Decodes an escape after its backslash to at most 4 bytes, and refuses the two separators. */
static const byte *read_escape(const byte *at, byte *to, int *n_bytes)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    *n_bytes = 1;
    for (int i = 0; i < 8; i++)
        if (*at == (byte)letters[i]) {
            *to = meanings[i];
            return at + 1;
        }
    uint32_t code, low;
    if (*at != 'u' || !(at = read_hex4(at + 1, &code)))
        return NULL;
    if (code >= 0xd800 && code < 0xe000) { /* a surrogate */
        if (code >= 0xdc00 || at[0] != '\\' || at[1] != 'u' || !(at = read_hex4(at + 2, &low)) ||
            low < 0xdc00 || low >= 0xe000)
            return NULL;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *n_bytes = put_utf8(to, code);
    return code == SEPARATOR || code == SET_END ? NULL : at;
}

/* Decodes a string with its quotes to `to`, which is advanced. */
static const byte *read_string(const byte *at, byte **to)
{
    if (*at++ != '"')
        return NULL;
    for (;;) {
        const byte *from = at;
        at = skip_plain(at);
        memcpy(*to, from, at - from);
        *to += at - from;
        if (*at == '"')
            return at + 1;
        int n_bytes;
        if (*at != '\\' || !(at = read_escape(at + 1, *to, &n_bytes)))
            return NULL;
        *to += n_bytes;
    }
}

static const byte *skip_string(const byte *at)
{
    if (*at++ != '"')
        return NULL;
    for (;;) {
        at = skip_plain(at);
        if (*at == '"')
            return at + 1;
        byte nowhere[4];
        int n_bytes;
        if (*at != '\\' || !(at = read_escape(at + 1, nowhere, &n_bytes)))
            return NULL;
    }
}

/* Skips a name that is not kept; one with many escapes is refused. */
static const byte *skip_name(const byte *at)
{
    const byte *end = skip_string(at);
    return end && end - at - 2 <= MAX_NAME_BYTES ? end : NULL;
}

/* Decodes a string of a column, followed by SEPARATOR. */
static const byte *read_text(const byte *at, byte **to, int64_t least, int64_t most)
{
    byte *start = *to;
    at = read_string(at, to);
    int64_t size = *to - start;
    if (!at || size < least || size > most)
        return NULL;
    *(*to)++ = SEPARATOR;
    return at;
}

/* Appends the strings of a row to a column; NULL is an empty one. The first two, trace_id and
   node_id, must not be empty. */
static bool put_texts(const byte *const *strings, int n, int64_t most, byte *column, int64_t *size)
{
    byte *to = column + *size;
    for (int i = 0; i < n; i++)
        if (!strings[i])
            *to++ = SEPARATOR;
        else if (!read_text(strings[i], &to, i < 2, i < 2 ? MAX_ID_BYTES : most))
            return false;
    *size = to - column;
    return true;
}

/* --- lists and objects --- */

/* Advances `*at` to the next item and increments `*n`, which begins at 0. False after the last
   item, with `*at` after the closing bracket, or NULL if the list is malformed. */
static bool next_item(const byte **at, byte closing, int64_t *n)
{
    const byte *here = skip_space(*at);
    if (*here == closing) {
        *at = here + 1;
        return false;
    }
    if (*n) {
        if (*here != ',') {
            *at = NULL;
            return false;
        }
        here = skip_space(here + 1);
    }
    *at = here;
    ++*n;
    return true;
}

/* Reads the name of a member without its quotes, up to its value. A name with escapes is
   refused. */
static const byte *read_name(const byte *at, const byte **name, int64_t *size)
{
    if (*at++ != '"')
        return NULL;
    *name = at;
    at = skip_plain(at);
    *size = at - *name;
    if (*at != '"')
        return NULL;
    at = skip_space(at + 1);
    return *at == ':' ? skip_space(at + 1) : NULL;
}

static const byte *skip_value(const byte *at, int depth)
{
    int64_t n = 0;
    byte opening = *at;
    switch (opening) {
    case '"':
        return skip_string(at);
    case 't':
        return skip_word(at, "true");
    case 'f':
        return skip_word(at, "false");
    case 'n':
        return skip_word(at, "null");
    case '[':
    case '{':
        if (depth >= MAX_NESTING)
            return NULL;
        at++;
        while (next_item(&at, opening + 2, &n)) { /* "]" is "[" + 2, "}" is "{" + 2 */
            if (opening == '{') {
                if (!(at = skip_string(at)))
                    return NULL;
                at = skip_space(at);
                if (*at != ':')
                    return NULL;
                at = skip_space(at + 1);
            }
            if (!(at = skip_value(at, depth + 1)))
                return NULL;
        }
        return at;
    default:
        return skip_number(at);
    }
}

/* Reads numbers of a text with this end; without `to` they are only checked. */
static const byte *read_numbers(const byte *at, const byte *end, double *to, int64_t most,
                                int64_t *n)
{
    *n = 0;
    if (*at++ != '[')
        return NULL;
    for (;;) {
        if (*n && *at == ',' && is_digit(at[1])) /* the usual case of `next_item` */
            at++, ++*n;
        else if (!next_item(&at, ']', n))
            return at;
        double *value = to ? to + *n - 1 : NULL;
        if (*n > most ||
            !(at = end - at < 8 ? read_number(at, value) : read_short_number(at, value)))
            return NULL;
    }
}

/* Called by `scan_object` for each member: from its value to the position after it. */
typedef const byte *member_reader(void *row, const byte *name, int64_t size, const byte *at);

static const byte *scan_object(const byte *at, member_reader *read, void *row)
{
    const byte *name;
    int64_t n = 0, size;
    if (*at++ != '{')
        return NULL;
    while (next_item(&at, '}', &n))
        if (!(at = read_name(at, &name, &size)) || !(at = read(row, name, size, at)))
            return NULL;
    return at;
}

struct known_name {
    const char *text;
    int64_t size;
};
#define NAME(text) {text, sizeof text - 1}

static int find_name(const struct known_name *known, int n, const byte *name, int64_t size)
{
    for (int i = 0; i < n; i++)
        if (known[i].size == size && memcmp(known[i].text, name, size) == 0)
            return i;
    return -1;
}

/* Reads a message: an object, followed by white space only. */
static bool scan_message(const byte *text, const byte *end, member_reader *read, void *row)
{
    if (end - text > MAX_MESSAGE_BYTES)
        return false;
    const byte *at = scan_object(skip_space(text), read, row);
    return at && skip_space(at) == end;
}

static bool is_null(const byte *at)
{
    return *at == 'n'; /* only null begins with n; `skip_word` checks the rest */
}
