/* Reads record sets from standard input into arrays of exactly the size that is promised, each in
   memory of its own, so that a sanitizer sees every byte too far. Input: per set the offset to
   read first, flags and size as int64, then its bytes. Output: rows and bytes of each set. */

#include "../../evaluator/wire/native/native.c"

#include <stdio.h>
#include <stdlib.h>

static void *array(int64_t n_items, size_t size)
{
    void *items = malloc(n_items * size);
    if (!items)
        abort();
    return items;
}

int main(void)
{
    int64_t head[3], n_sets = 0, n_rows = 0;
    while (fread(head, sizeof head, 1, stdin) == 1) {
        int64_t size = head[2], room = size / MIN_RECORD_BYTES;
        byte *data = array(size, 1);
        if (size && fread(data, size, 1, stdin) != 1)
            abort();
        if (crc32c(data, data + size) != ~crc_by_bytes(data, data + size))
            abort();
        struct record_sets out = {.next_offset = head[0]};
        out.offsets = array(room, 8), out.timestamps_ms = array(room, 8);
        out.key_starts = array(room, 8), out.key_sizes = array(room, 8);
        out.value_starts = array(room, 8), out.value_sizes = array(room, 8);
        out.keys = array(size, 1), out.values = array(size, 1);
        read_record_sets(data, size, head[1], &out);
        n_sets += out.stop == AT_END;
        n_rows += out.n_rows;
        free(out.offsets), free(out.timestamps_ms), free(out.key_starts), free(out.key_sizes);
        free(out.value_starts), free(out.value_sizes), free(out.keys), free(out.values);
        free(data);
    }
    printf("%lld %lld\n", (long long)n_sets, (long long)n_rows);
    return 0;
}
