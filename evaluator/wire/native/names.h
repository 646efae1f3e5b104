/* Candidate ids as numbers, in order of first occurrence. Needs basics.h. */

/* An entry of the hash table is valid if it is of this generation, so the table is cleared only
   when generations exceed 32 bits. It has at least twice as many places as there can be names. */
struct names {
    int64_t n, size, generation, seed, mask;
    byte *text;                /* names, each with SEPARATOR */
    int64_t *starts, *lengths; /* [n] */
    int64_t *mentioned;        /* [n]: the last row with this name */
    uint64_t *table;           /* generation << 32 | number, at the hash or after it */
};

static uint64_t hash_of(const struct names *names, const byte *text, int64_t size)
{
    uint64_t hash = (uint64_t)names->seed ^ (uint64_t)size, word = 0;
    for (; size >= 8; size -= 8, text += 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15; /* odd, so that it is invertible */
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, size);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    return hash ^ hash >> 32;
}

/* The number of the name that was written at the end of the text, up to its SEPARATOR, by `row`;
   a name that has a number already is not kept again. */
static int64_t number_of(struct names *names, byte *end, int64_t row, bool *repeated)
{
    byte *start = names->text + names->size;
    int64_t length = end - start - 1;
    uint64_t place = hash_of(names, start, length);
    for (;; place++) {
        uint64_t entry = names->table[place & (uint64_t)names->mask];
        if ((int64_t)(entry >> 32) != names->generation)
            break;
        int64_t number = entry & UINT32_MAX;
        if (names->lengths[number] == length &&
            memcmp(names->text + names->starts[number], start, length) == 0) {
            *repeated = names->mentioned[number] == row;
            names->mentioned[number] = row;
            return number;
        }
    }
    names->table[place & (uint64_t)names->mask] =
        (uint64_t)names->generation << 32 | (uint64_t)names->n;
    names->starts[names->n] = names->size;
    names->lengths[names->n] = length;
    names->mentioned[names->n] = row;
    names->size = end - names->text;
    *repeated = false;
    return names->n++;
}
