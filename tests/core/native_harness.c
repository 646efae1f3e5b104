/* Puts, finds and removes hashes from arrays of exactly the promised size, each in memory of its own, so
   that a sanitizer finds every access out of bounds. */

#include "../../evaluator/core/native/native.c"

#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 20261122;

static int64_t drawn(int64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(state >> 33) % n;
}

static void *array(int64_t n_items)
{
    void *items = malloc(n_items * 8);
    if (!items)
        abort();
    return items;
}

/* Hashes of few parts that collide often, stored and removed. */
static void index_some(int64_t n_turns, int64_t n_hashes)
{
    struct index *index = index_new();
    uint64_t *hashes = array(n_hashes);
    int64_t *numbers = array(n_hashes);
    for (int64_t turn = 0; turn < n_turns; turn++) {
        int64_t n = drawn(n_hashes + 1);
        for (int64_t i = 0; i < n; i++) {
            hashes[i] = (uint64_t)drawn(2) << 63 | (uint64_t)drawn(n_hashes * 3) << (20 + drawn(20));
            numbers[i] = 1 + drawn(9);
        }
        if (!index_put(index, n, hashes, numbers))
            abort();
        index_remove(index, drawn(n + 1), hashes);
        index_find(index, n, hashes, numbers);
    }
    free(hashes), free(numbers);
    index_free(index);
}

int main(void)
{
    for (int64_t n = 1; n <= 100; n++)
        index_some(20, n * 7);
    puts("done");
    return 0;
}
