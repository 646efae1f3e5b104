/* Maps records from standard input by a plan, with arrays of exactly the size that is promised. Input:
   the table of powers, then per batch as int64 the sizes of the plan, its tables, the number of records,
   the size of the output, and each record and its key with their lengths. */

#include "../wire/harness.h"

int main(void)
{
    int64_t n_mapped = 0, n_nodes;
    read_powers();
    while ((n_nodes = number()) >= 0) {
        struct mapping map = given_plan(n_nodes);
        int64_t n = number(), room = number(), n_text = 0, n_keys = 0;
        int64_t *starts = array(n, 8), *ends = array(n, 8), *key_starts = array(n, 8);
        int64_t *key_sizes = array(n, 8);
        byte *text = NULL, *keys = NULL, *out = array(room, 1);
        for (int64_t i = 0; i < n; i++) {
            int64_t size = number();
            byte *record = given(size, 1);
            text = realloc(text, n_text + size + 1);
            memcpy(text + n_text, record, size);
            free(record);
            starts[i] = n_text, ends[i] = n_text + size, n_text += size + 1;
            text[ends[i]] = 0;
            size = number();
            byte *key = given(size, 1);
            keys = realloc(keys, n_keys + size + 1);
            memcpy(keys + n_keys, key, size);
            free(key);
            key_starts[i] = n_keys, key_sizes[i] = size, n_keys += size + 1;
            keys[n_keys - 1] = 0;
        }
        map.starts = array(n, 8), map.sizes = array(n, 8);
        map.keys = keys, map.key_starts = key_starts, map.key_sizes = key_sizes;
        map.to = out, map.end = out + room;
        map_records(text, starts, ends, n, &map);
        for (int64_t i = 0; i < n; i++)
            n_mapped += map.sizes[i] >= 0;
        free((void *)map.nodes), free((void *)map.members), free((void *)map.paths);
        free((void *)map.choices), free((void *)map.texts), free(map.slots), free(map.rows);
        free(starts), free(ends), free(key_starts), free(key_sizes), free(text), free(keys);
        free(out), free(map.starts), free(map.sizes);
    }
    printf("%lld\n", (long long)n_mapped);
    return 0;
}
