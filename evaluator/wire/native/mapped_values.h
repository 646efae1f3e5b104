/* A plan of mapping/plan.py, and its values in the form of canonical messages. Needs json.h, rows.h
   and doubles.h. Members of a plan are numbers, positions in `texts` among them. */

/* A member of an object that paths name; nodes[first] to before nodes[first + n] are in it. */
struct node {
    int64_t name, size, first, n;
    int64_t slot; /* where the position of its value is kept */
    int64_t form, row_slot;
};
enum { ONE_VALUE, ROWS, ARRAY }; /* ROWS: an array of objects; ARRAY: one of parallel arrays */

struct member {
    int64_t kind, text, size;      /* what is written before the value */
    int64_t first_path, n_paths;   /* the first slot that is not missing counts */
    int64_t first_choice, n_choices;
    int64_t is_required;
    int64_t add, per; /* INTEGER, NUMBER (bits of a double): what is added; TIME: value x add / per */
};
enum member_kind {
    FIXED, /* only its text */
    TEXT,
    NUMBER,
    INTEGER,
    BOOLEAN,
    TIME,
    ISO_TIME,
    RECORD_TIME,
    CHOICE, /* of a table, or without paths the only one; of `where` with an empty text */
    PRESENT,
    COLUMN, /* of the n_choices members that follow; if per is 1, those of a row in brackets */
    ROW_NUMBERS,
    OBJECT, /* of the members up to OBJECT_END; without any it is left out */
    OBJECT_END,
    GRADES, /* of the two members that follow, an id and a grade of each row */
};
enum { OF_KEY = -1, OTHERWISE = -2 }; /* slots: the key of the record; what is not in the record */

struct choice {
    int64_t raw, raw_size, text, size;
};

struct mapping {
    const struct node *nodes;
    const struct member *members;
    const int64_t *paths;
    const struct choice *choices;
    const byte *texts;
    int64_t n_members, n_slots, n_row_slots;
    const byte **slots, **rows; /* [n_slots], [MAX_CANDIDATES * n_row_slots]: positions or NULL */
    const byte *keys;
    const int64_t *key_starts, *key_sizes, *times_ms;
    byte *to, *end;
    int64_t *starts, *sizes; /* of the messages; -1: refused */
    int64_t at, n_rows, n_cleared;
};

/* --- writing; false: no room, or not a value of the kind --- */

static bool put(struct mapping *map, const void *from, int64_t size)
{
    if (map->end - map->to < size)
        return false;
    map->to = put_fixed(map->to, from, size);
    return true;
}

static bool put_byte(struct mapping *map, byte c)
{
    if (map->to == map->end)
        return false;
    *map->to++ = c;
    return true;
}

static bool put_int(struct mapping *map, int64_t number)
{
    if (map->end - map->to < 20)
        return false;
    map->to = put_number(map->to, number);
    return true;
}

static bool put_escaped(struct mapping *map, byte c)
{
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t", hex[] = "0123456789abcdef";
    for (int i = 0; i < 7; i++)
        if (c == (byte)meanings[i])
            return put_byte(map, '\\') && put_byte(map, letters[i]);
    return put(map, "\\u00", 4) && put_byte(map, hex[c >> 4]) && put_byte(map, hex[c & 15]);
}

static bool put_string(struct mapping *map, const byte *at)
{
    const byte *from = at++;
    for (;;) {
        at = skip_plain(at);
        if (*at == '"')
            return put(map, from, at + 1 - from);
        byte found[4];
        int n_bytes;
        if (!put(map, from, at - from) || !(at = read_escape(at + 1, found, &n_bytes)))
            return false;
        if (n_bytes == 1 && !is_plain[*found]) {
            if (!put_escaped(map, *found))
                return false;
            n_bytes = 0;
        }
        for (int i = 0; i < n_bytes; i++)
            if (!put_byte(map, found[i]))
                return false;
        from = at;
    }
}

/* An integer of at most 19 digits, to before `end`. */
static const byte *read_whole(const byte *at, int64_t *value)
{
    at = read_integer(at, 0, value);
    return at && *at != '.' && (*at | 0x20) != 'e' ? at : NULL;
}

static bool put_text(struct mapping *map, const byte *at)
{
    int64_t unused;
    if (*at == '"')
        return put_string(map, at);
    const byte *end = read_whole(at, &unused);
    return end && put_byte(map, '"') && put(map, at, end - at) && put_byte(map, '"');
}

/* The key as text, if it is ASCII and needs no escapes. */
static bool put_key(struct mapping *map)
{
    const byte *key = map->keys + map->key_starts[map->at];
    int64_t size = map->key_sizes[map->at];
    for (int64_t i = 0; i < size; i++)
        if (!is_plain[key[i]] || key[i] >= 0x80)
            return false;
    return put_byte(map, '"') && put(map, key, size) && put_byte(map, '"');
}

static bool put_double(struct mapping *map, double value)
{
    static const byte zeros[] = "0.00000000000000000";
    uint64_t digits;
    int64_t power;
    byte text[20];
    if (value == 0.0)
        return put(map, "0.0", 3);
    if (value < 0.0 && !put_byte(map, '-'))
        return false;
    if (!shortest(value < 0.0 ? -value : value, &digits, &power))
        return false;
    int64_t n = put_number(text, digits) - text, point = n + power;
    if (point > 16 || point <= -5)
        return put_byte(map, text[0]) && (n == 1 || (put_byte(map, '.') && put(map, text + 1, n - 1))) &&
               put_byte(map, 'e') && put_int(map, point - 1);
    if (power >= 0)
        return put(map, text, n) && put(map, zeros + 2, power) && put(map, ".0", 2);
    if (point > 0)
        return put(map, text, point) && put_byte(map, '.') && put(map, text + point, n - point);
    return put(map, zeros, 2 - point) && put(map, text, n);
}

/* A number in the form of `put_double`. Text that has this form already is copied: with at most 15
   digits no other double has as few, and with more the shortest digits are compared. */
static bool put_decimal(struct mapping *map, const byte *at, double add)
{
    const byte *first = at + (*at == '-'), *end = first, *point = NULL;
    uint64_t digits = 0, found;
    int64_t power;
    double value;
    for (; is_digit(*end) || *end == '.'; end++)
        if (*end == '.')
            point = end;
        else
            digits = 10 * digits + (*end - '0');
    bool is_plain_form = point && end - first <= 20 && digits && (end[-1] != '0' || end == point + 2) &&
                         (*end | 0x20) != 'e' && add == 0.0;
    if (is_plain_form && end - first <= 16 && (first[0] != '0' || first[2] != '0'))
        return put(map, at, end - at);
    if (is_plain_form && nearest_double(digits, point + 1 - end, &value) && value >= 0.001 &&
        value < 1e15 && shortest(value, &found, &power) && found == digits &&
        power == point + 1 - end)
        return put(map, at, end - at);
    if (!read_number(at, &value) || (*at == '-' && value == 0.0))
        return false;
    return put_double(map, value + add);
}

static bool read_two(const byte *at, int64_t *value)
{
    *value = is_digit(at[0]) && is_digit(at[1]) ? 10 * (at[0] - '0') + at[1] - '0' : -1;
    return *value >= 0;
}

/* 2026-01-31T08:00:00, a fraction of at most 6 digits, and Z, +01:00 or nothing; from 1970 on. */
static bool put_iso(struct mapping *map, const byte *at)
{
    static const byte lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t century, year, month, day, hour, minute, second, ms = 0, hours, minutes;
    if (*at++ != '"' || !read_two(at, &century) || !read_two(at + 2, &year) || at[4] != '-' ||
        !read_two(at + 5, &month) || at[7] != '-' || !read_two(at + 8, &day) || at[10] != 'T' ||
        !read_two(at + 11, &hour) || at[13] != ':' || !read_two(at + 14, &minute) ||
        at[16] != ':' || !read_two(at + 17, &second))
        return false;
    year += 100 * century;
    bool is_leap = year % 4 == 0 && (year % 100 || year % 400 == 0);
    if (year < 1970 || month < 1 || month > 12 || day < 1 ||
        day > lengths[month - 1] + (is_leap && month == 2) || hour > 23 || minute > 59 || second > 59)
        return false;
    at += 19;
    if (*at == '.') {
        int64_t n = 0;
        for (at++; is_digit(*at); at++, n++)
            ms = n < 3 ? 10 * ms + *at - '0' : ms;
        if (n == 0 || n > 6)
            return false;
        for (; n < 3; n++)
            ms *= 10;
    }
    int64_t offset = 0;
    if (*at == '+' || *at == '-') {
        if (!read_two(at + 1, &hours) || at[3] != ':' || !read_two(at + 4, &minutes) ||
            hours > 23 || minutes > 59)
            return false;
        offset = (hours * 60 + minutes) * (*at == '-' ? -1 : 1);
        at += 6;
    } else if (*at == 'Z') {
        at++;
    }
    if (*at != '"')
        return false;
    int64_t past = year - 1; /* full years before this one, and their leap days */
    int64_t days = 365 * (year - 1970) + past / 4 - past / 100 + past / 400 - 477 + day - 1;
    for (int i = 0; i < month - 1; i++)
        days += lengths[i] + (is_leap && i == 1);
    return put_int(map, ((days * 1440 + hour * 60 + minute - offset) * 60 + second) * 1000 + ms);
}

static bool put_time(struct mapping *map, const struct member *member, const byte *at)
{
    int64_t value;
    bool is_text = *at == '"';
    const byte *end = read_whole(at + is_text, &value);
    if (!end || (is_text && *end != '"') || __builtin_mul_overflow(value, member->add, &value))
        return false;
    return put_int(map, value / member->per);
}

/* The replacement of a value; without paths the only one. */
static bool put_choice(struct mapping *map, const struct member *member, const byte *at)
{
    const struct choice *first = map->choices + member->first_choice;
    if (!member->n_paths)
        return put(map, map->texts + first->text, first->size);
    int64_t size = skip_value(at, 0) - at;
    for (const struct choice *each = first; each < first + member->n_choices; each++)
        if (each->raw_size == size && is_same(map->texts + each->raw, at, size))
            return put(map, map->texts + each->text, each->size);
    return false;
}
