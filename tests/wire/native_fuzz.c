/* A target of libFuzzer. The first byte of an input is what is read: record sets, rankings, judgments
   or settled queries, records for a plan, or records with a schema; the second one is its flags,
   of which four bits name the plan or schema, and the others divide the room of the output.
   Messages end at bytes 0xff, which UTF-8 has not. */

#include "harness.h"

int LLVMFuzzerInitialize(int *n, char ***arguments);
int LLVMFuzzerTestOneInput(const byte *data, size_t size);

enum { RECORD_SETS, RANKINGS, JUDGMENTS, MAPPED, TEXTS, N_KINDS };
enum { MOST = 16 }; /* plans and schemas: what four bits of the flags name */
static struct mapping plans[MOST];
static struct texts schemas[MOST];
static int64_t n_plans, n_schemas;

/* The powers, plans and tables of schemas are in the file that TABLES names. */
int LLVMFuzzerInitialize(int *n, char ***arguments)
{
    (void)n, (void)arguments;
    if (!getenv("TABLES") || !freopen(getenv("TABLES"), "rb", stdin))
        abort();
    read_powers();
    n_plans = number(), n_schemas = number();
    if (n_plans < 1 || n_plans > MOST || n_schemas < 1 || n_schemas > MOST)
        abort();
    for (int64_t i = 0; i < n_plans; i++)
        plans[i] = given_plan(number());
    for (int64_t i = 0; i < n_schemas; i++)
        schemas[i] = given_schema(number());
    return 0;
}

/* Maps records by a plan; the first text is their key. The time of each is its place. */
static void mapped_in(const byte *text, int64_t *starts, int64_t *ends, int64_t n, int64_t flags)
{
    struct mapping map = plans[(flags & 15) % n_plans];
    int64_t size = ends[0], room = (2 * ends[n - 1] + n * 2048) >> (flags >> 4);
    int64_t *key_starts = array(n, 8), *key_sizes = array(n, 8);
    byte *key = array(size, 1), *out = array(room, 1);
    memcpy(key, text, size);
    for (int64_t i = 0; i < n; i++)
        key_starts[i] = 0, key_sizes[i] = size ? size : -1;
    memset(map.rows, 0xbe, MAX_CANDIDATES * map.n_row_slots * sizeof *map.rows);
    map.keys = key, map.key_starts = key_starts, map.key_sizes = key_sizes, map.times_ms = starts;
    map.starts = array(n, 8), map.sizes = array(n, 8), map.to = out, map.end = out + room;
    map_records(text, starts + 1, ends + 1, n - 1, &map);
    free(key_starts), free(key_sizes), free(key), free(out), free(map.starts), free(map.sizes);
}

static void messages_in(const byte *data, int64_t size, int kind, int64_t flags)
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
    if (kind == MAPPED)
        mapped_in(text, starts, ends, n, flags);
    else if (kind == RANKINGS)
        rankings_in(text, starts, ends, n, size + 1 + 6 * n, flags & 1);
    else if (flags & 2)
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
    int kind = data[0] % N_KINDS, flags = data[1];
    byte *copy = array(size - 2, 1);
    memcpy(copy, data + 2, size - 2);
    if (kind == RECORD_SETS)
        record_sets_in(copy, size - 2, flags >> 4, flags & 15, &n_rows);
    else if (kind == TEXTS)
        text_in(copy, size - 2, (12 * size + 1024) >> (flags >> 4),
                schemas[(flags & 15) % n_schemas]);
    else
        messages_in(copy, size - 2, kind, flags);
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
