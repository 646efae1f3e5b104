/* Hashes of keys: BLAKE2b with 16 bytes. Source: RFC 7693. */

static const uint64_t blake_start[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const byte blake_order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

enum { BLAKE_BLOCK = 128, KEY_HASH_BYTES = 16 };

static uint64_t rotated_right(uint64_t word, int bits)
{
    return word >> bits | word << (64 - bits);
}

static void blake_mix(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d, uint64_t x, uint64_t y)
{
    *a += *b + x;
    *d = rotated_right(*d ^ *a, 32);
    *c += *d;
    *b = rotated_right(*b ^ *c, 24);
    *a += *b + y;
    *d = rotated_right(*d ^ *a, 16);
    *c += *d;
    *b = rotated_right(*b ^ *c, 63);
}

/* Adds a block; `n` bytes were added with it, and `last` is all ones for the last block. */
static void blake_block(uint64_t *state, const byte *block, uint64_t n, uint64_t last)
{
    uint64_t words[16], v[16];
    memcpy(words, block, BLAKE_BLOCK);
    memcpy(v, state, 64);
    memcpy(v + 8, blake_start, 64);
    v[12] ^= n;
    v[14] ^= last;
#pragma GCC unroll 12
    for (int round = 0; round < 12; round++) {
        const byte *order = blake_order[round % 10];
        for (int i = 0; i < 4; i++)
            blake_mix(v + i, v + 4 + i, v + 8 + i, v + 12 + i, words[order[2 * i]],
                      words[order[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            blake_mix(v + i, v + 4 + (i + 1) % 4, v + 8 + (i + 2) % 4, v + 12 + (i + 3) % 4,
                      words[order[8 + 2 * i]], words[order[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++)
        state[i] ^= v[i] ^ v[8 + i];
}

/* Hashes a trace_id and a node_id of at most MAX_ID_BYTES, each followed by SEPARATOR. */
static void put_key_hash(const byte *texts, byte *to)
{
    byte name[5 * BLAKE_BLOCK] = {0};
    uint64_t state[8];
    const byte *trace_end = memchr(texts, SEPARATOR, MAX_ID_BYTES + 1), *node_id = trace_end + 1;
    const byte *node_end = memchr(node_id, SEPARATOR, MAX_ID_BYTES + 1);
    int64_t n_trace = trace_end - texts, n_node = node_end - node_id;
    int64_t size = 2 + n_trace + n_node, done = 0;
    name[0] = n_trace & 0xff;
    name[1] = n_trace >> 8;
    memcpy(name + 2, texts, n_trace);
    memcpy(name + 2 + n_trace, node_id, n_node);
    memcpy(state, blake_start, sizeof state);
    state[0] ^= 0x01010000 ^ KEY_HASH_BYTES;
    for (; size - done > BLAKE_BLOCK; done += BLAKE_BLOCK)
        blake_block(state, name + done, done + BLAKE_BLOCK, 0);
    blake_block(state, name + done, size, ~(uint64_t)0);
    memcpy(to, state, KEY_HASH_BYTES);
}
