/* Decodes messages from standard input. Input: the table of powers, then per batch the number of
   messages and each message with its length, all as int64. */

#include "harness.h"

static void read_exactly(void *to, size_t size)
{
    if (size && fread(to, size, 1, stdin) != 1)
        abort();
}

int main(void)
{
    int64_t n, size, decoded[3] = {0, 0, 0};
    read_powers();
    while (fread(&n, sizeof n, 1, stdin) == 1) {
        int64_t *starts = array(n, sizeof *starts), *ends = array(n, sizeof *ends), length = 0;
        byte *text = NULL;
        for (int64_t i = 0; i < n; i++) {
            read_exactly(&size, sizeof size);
            text = realloc(text, length + size + 1);
            read_exactly(text + length, size);
            starts[i] = length;
            length += size;
            ends[i] = length;
            text[length++] = 0;
        }
        decoded[0] += rankings_in(text, starts, ends, n, length + 6 * n, true);
        if (rankings_in(text, starts, ends, n, length + 6 * n, false) < 0)
            abort();
        decoded[1] += judgments_in(text, starts, ends, n, length + 6 * n);
        decoded[2] += settled_in(text, starts, ends, n, length + 6 * n);
        free(text);
        free(starts), free(ends);
    }
    for (int i = 0; i < 3; i++)
        printf("%lld\n", (long long)decoded[i]);
    return 0;
}
