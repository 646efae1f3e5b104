/* A target of libFuzzer. The first byte of an input is what is read: record sets, rankings, or
   judgments or settled queries; the second one is its flags. Messages end at bytes 0xff, which UTF-8 has not. */

#include "harness.h"

int LLVMFuzzerInitialize(int *n, char ***arguments);
int LLVMFuzzerTestOneInput(const byte *data, size_t size);

static uint64_t powers[MOST_POWER - LEAST_POWER + 1][2];

/* The table of powers is in the file that POWERS names. */
int LLVMFuzzerInitialize(int *n, char ***arguments)
{
    FILE *file = getenv("POWERS") ? fopen(getenv("POWERS"), "rb") : NULL;
    (void)n, (void)arguments;
    if (!file || fread(powers, sizeof powers, 1, file) != 1)
        abort();
    fclose(file);
    set_powers_of_five(powers);
    return 0;
}

static void messages_in(const byte *data, int64_t size, bool are_rankings, bool keeps_features,
                        bool is_settled)
{
    byte *text = array(size + 1, 1);
    int64_t *starts = array(size + 1, 8), *ends = array(size + 1, 8), n = 0, start = 0;
    memcpy(text, data, size);
    text[size] = 0xff;
    for (int64_t i = 0; i <= size; i++)
        if (text[i] == 0xff) {
            text[i] = 0;
            starts[n] = start, ends[n++] = i;
            start = i + 1;
        }
    if (are_rankings)
        rankings_in(text, starts, ends, n, size + 1 + 6 * n, keeps_features);
    else if (is_settled)
        settled_in(text, starts, ends, n, size + 1 + 6 * n);
    else
        judgments_in(text, starts, ends, n, size + 1 + 6 * n);
    free(text), free(starts), free(ends);
}

int LLVMFuzzerTestOneInput(const byte *data, size_t size)
{
    int64_t n_rows = 0;
    if (size < 2)
        return 0;
    byte *copy = array(size - 2, 1);
    memcpy(copy, data + 2, size - 2);
    if (data[0] % 3 == 0)
        record_sets_in(copy, size - 2, data[1] >> 4, data[1] & 15, &n_rows);
    else
        messages_in(copy, size - 2, data[0] % 3 == 1, data[1] & 1, data[1] & 2);
    free(copy);
    return 0;
}

#ifdef REPLAY /* the inputs in these files, without libFuzzer */
int main(int n, char **names)
{
    LLVMFuzzerInitialize(&n, &names);
    for (int i = 1; i < n; i++) {
        static byte data[1 << 20];
        FILE *file = fopen(names[i], "rb");
        if (!file)
            abort();
        LLVMFuzzerTestOneInput(data, fread(data, 1, sizeof data, file));
        fclose(file);
    }
    return 0;
}
#endif
