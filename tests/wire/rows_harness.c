/* Writes rows and frames them into memory of exactly the size that is promised, so that a sanitizer
   sees every byte too far. Input, as int64 and bytes: per case rows, columns (text, source), sources
   (kind, terminator, items, pool, ends in it, whether it has counts, counts, whether they are pairs),
   and the size of the output. */

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

static int64_t number(void)
{
    int64_t value;
    return fread(&value, sizeof value, 1, stdin) == 1 ? value : -1;
}

static byte *text_of(int64_t size)
{
    byte *text = array(size, 1);
    if (size && fread(text, size, 1, stdin) != 1)
        abort();
    return text;
}

static void frame(const byte *text, const int64_t *ends, int64_t n_rows)
{
    int64_t *spans = array(4 * n_rows, sizeof *spans), start = 0, n_bytes = 0;
    for (int64_t i = 0; i < 2 * n_rows; i++) {
        spans[2 * i] = start, spans[2 * i + 1] = start = ends[i];
        n_bytes = ends[i];
    }
    if (n_rows)
        n_bytes -= spans[1], spans[0] = spans[1] = -1; /* no key */
    byte *headers = array(3, 1), *out = array(n_bytes + 45 * n_rows, 1);
    memset(headers, 'h', 3);
    if (frame_records(text, spans, n_rows, headers, 3, out) > n_bytes + 45 * n_rows)
        abort();
    free(spans), free(headers), free(out);
}

int main(void)
{
    for (int64_t n_rows, written = 0;;) {
        if ((n_rows = number()) < 0) {
            printf("%lld\n", (long long)written);
            return 0;
        }
        int64_t n_columns = number();
        struct column *columns = array(n_columns, sizeof *columns);
        for (int64_t i = 0; i < n_columns; i++) {
            int64_t size = number();
            columns[i] = (struct column){text_of(size), size, number()};
        }
        int64_t n_sources = number();
        struct source *sources = array(n_sources, sizeof *sources);
        struct source *given = array(n_sources, sizeof *given);
        for (int64_t i = 0; i < n_sources; i++) {
            int64_t kind = number(), terminator = number(), size = number();
            const byte *at = text_of(size), *pool = text_of(number());
            int64_t n_names = number();
            const int64_t *ends = (int64_t *)text_of(8 * (n_names + 1));
            const int64_t *counts = number() ? (int64_t *)text_of(8 * n_rows) : NULL;
            given[i] = sources[i] = (struct source){
                kind, at, at + size, terminator, pool, ends, n_names, counts, number()};
        }
        byte *out = array(number(), 1);
        int64_t *ends = array(2 * n_rows, sizeof *ends);
        if (write_rows(columns, n_columns, sources, n_sources, n_rows, 0, out, ends) >= 0) {
            frame(out, ends, n_rows);
            written++;
        }
        for (int64_t i = 0; i < n_columns; i++)
            free((void *)columns[i].fixed);
        for (int64_t i = 0; i < n_sources; i++)
            free((void *)given[i].at), free((void *)given[i].pool), free((void *)given[i].ends),
                free((void *)given[i].counts);
        free(columns), free(sources), free(given), free(out), free(ends);
    }
}
