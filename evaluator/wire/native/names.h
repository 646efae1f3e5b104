/* Names as numbers, in order of first use. Needs basics.h.

   They are kept from one call to the next, until the caller sets `n` and `size` to 0 and clears the
   table. It begins small and doubles with the names, in the room that the caller has made for as
   many as the messages can contain. */

struct name {
    int64_t start, length;
    int64_t row; /* the last one with this name */
};

struct names {
    int64_t n, size, seed, mask;
    int64_t row;       /* number of the message that is read */
    byte *text;        /* names, each with SET_END */
    struct name *all;  /* [n] */
    uint32_t *table;   /* number + 1 at the hash or after it; 0: free; at least twice as many as names */
};

static uint64_t word_at(const byte *text, int n_bytes)
{
    uint64_t word = 0;
    memcpy(&word, text, n_bytes);
    return word;
}

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15; /* odd, so that it is invertible */
    return hash ^ hash >> 32;
}

/* The last words overlap: copies of variable length are slow. */
static uint64_t hash_of(int64_t seed, const byte *text, int64_t size)
{
    uint64_t hash = (uint64_t)seed ^ (uint64_t)size;
    const byte *end = text + size;
    if (size >= 8) {
        for (; end - text > 8; text += 8)
            hash = mixed(hash, word_at(text, 8));
        return mixed(hash, word_at(end - 8, 8));
    }
    if (size >= 4)
        return mixed(hash, word_at(text, 4) << 32 | word_at(end - 4, 4));
    return size ? mixed(hash, text[0] << 16 | text[size / 2] << 8 | end[-1]) : hash;
}

static bool is_same(const byte *a, const byte *b, int64_t size)
{
    const byte *end = a + size;
    if (size >= 8) {
        for (; end - a > 8; a += 8, b += 8)
            if (word_at(a, 8) != word_at(b, 8))
                return false;
        return word_at(end - 8, 8) == word_at(b + (end - a) - 8, 8);
    }
    while (a < end && *a == *b)
        a++, b++;
    return a == end;
}

/* Where the number of a name is, or where it would be. */
static uint32_t *place_of(const struct names *names, const byte *text, int64_t size)
{
    for (uint64_t place = hash_of(names->seed, text, size);; place++) {
        uint32_t *entry = names->table + (place & (uint64_t)names->mask);
        const struct name *name = names->all + (int64_t)*entry - 1;
        if (!*entry || (name->length == size && is_same(names->text + name->start, text, size)))
            return entry;
    }
}

static void double_table(struct names *names)
{
    names->mask = 2 * names->mask + 1;
    memset(names->table, 0, (names->mask + 1) * sizeof *names->table);
    for (int64_t i = 0; i < names->n; i++)
        *place_of(names, names->text + names->all[i].start, names->all[i].length) = i + 1;
}

/* The number of a name; the text may be in the room after all names. */
static int64_t number_of(struct names *names, const byte *text, int64_t size, bool *repeated)
{
    uint32_t *entry = place_of(names, text, size);
    int64_t number = (int64_t)*entry - 1;
    *repeated = number >= 0 && names->all[number].row == names->row;
    if (number < 0) {
        number = names->n++;
        *entry = names->n;
        names->all[number] = (struct name){names->size, size, 0};
        memmove(names->text + names->size, text, size);
        names->size += size;
        names->text[names->size++] = SET_END;
        if (2 * names->n > names->mask)
            double_table(names);
    }
    names->all[number].row = names->row;
    return number;
}

/* Reads a string of at most MAX_ID_BYTES, but at least one, as a name. */
static const byte *read_numbered(const byte *at, const byte *end, struct names *names,
                                 int32_t *number, bool *repeated)
{
    if (*at++ != '"')
        return NULL;
    const byte *text = at;
    at = skip_plain_words(at, end);
    int64_t size = at - text;
    if (*at == '"')
        at++;
    else {
        byte *to = names->text + names->size;
        at = read_string(text - 1, &to);
        text = names->text + names->size;
        size = to - text;
    }
    if (!at || size < 1 || size > MAX_ID_BYTES)
        return NULL;
    *number = number_of(names, text, size, repeated);
    return at;
}
