/* Writes rows and frames them into memory of exactly the size that is promised, so that a sanitizer
   sees every byte too far. Input, as int64 and bytes: per case rows, columns (text, source), sources
   (terminator, text, whether it has counts, counts), and the size of the output. */

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
        struct texts *sources = array(n_sources, sizeof *sources);
        byte **texts = array(n_sources, sizeof *texts);
        for (int64_t i = 0; i < n_sources; i++) {
            int64_t terminator = number(), size = number();
            texts[i] = text_of(size);
            bool counted = number();
            sources[i] = (struct texts){texts[i], texts[i] + size, terminator, NULL};
            if (counted)
                sources[i].counts = (int64_t *)text_of(8 * n_rows);
        }
        const int64_t **counts = array(n_sources, sizeof *counts);
        for (int64_t i = 0; i < n_sources; i++)
            counts[i] = sources[i].counts;
        byte *out = array(number(), 1);
        int64_t *ends = array(2 * n_rows, sizeof *ends);
        if (write_rows(columns, n_columns, sources, n_sources, n_rows, out, ends) >= 0) {
            frame(out, ends, n_rows);
            written++;
        }
        for (int64_t i = 0; i < n_columns; i++)
            free((void *)columns[i].fixed);
        for (int64_t i = 0; i < n_sources; i++)
            free(texts[i]), free((void *)counts[i]);
        free(columns), free(sources), free(texts), free(counts), free(out), free(ends);
    }
}
