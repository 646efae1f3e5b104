/* Reads record sets from standard input. Input: per set the offset to read first, flags and size as
   int64, then its bytes. Output: sets read to their end, and rows. */

#include "harness.h"

int main(void)
{
    int64_t head[3], n_sets = 0, n_rows = 0;
    while (fread(head, sizeof head, 1, stdin) == 1) {
        byte *data = array(head[2], 1);
        if (head[2] && fread(data, head[2], 1, stdin) != 1)
            abort();
        n_sets += record_sets_in(data, head[2], head[0], head[1], &n_rows);
        free(data);
    }
    printf("%lld %lld\n", (long long)n_sets, (long long)n_rows);
    return 0;
}
