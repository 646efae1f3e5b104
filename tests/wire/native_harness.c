/* Decodes messages from standard input into arrays of exactly the size that is promised, each in
   memory of its own, so that a sanitizer sees every byte too far. Input: the table of powers,
   then per batch the number of messages and each message with its length, all as int64. */

#include "../../evaluator/wire/native/native.c"

#include <stdio.h>
#include <stdlib.h>

static uint64_t powers[MOST_POWER - LEAST_POWER + 1][2];

static void *array(int64_t n_items, size_t size)
{
    void *items = malloc(n_items * size);
    if (!items && n_items)
        abort();
    return items;
}

static void read_exactly(void *to, size_t size)
{
    if (size && fread(to, size, 1, stdin) != 1)
        abort();
}

static struct names names_for(int64_t room)
{
    struct names names = {.mask = 1}; /* so that it doubles often */
    int64_t n_places = 4 * (1 + room / 3);
    names.text = array(room, 1), names.all = array(1 + room / 3, sizeof *names.all);
    names.table = calloc(n_places, sizeof *names.table);
    return names;
}

static void free_names(struct names *names)
{
    free(names->text), free(names->all), free(names->table);
}

static int64_t rankings_in(const byte *text, const int64_t *starts, const int64_t *ends, int64_t n,
                           int64_t room, bool keeps_features)
{
    struct names candidates = names_for(room), strata = names_for(room), schemas = names_for(room);
    struct rankings out = {&candidates, &strata, &schemas, .keeps_features = keeps_features};
    out.timestamps_ms = array(room, 8), out.candidate_counts = array(room, 8);
    out.stratum_numbers = array(room, 4), out.has_ranks = array(room, 1);
    out.strings = array(room, 1), out.ids = array(room, 4);
    out.scores = array(room, 8), out.ranks = array(room, 8);
    out.feature_counts = array(room, 8), out.schema_numbers = array(room, 4);
    out.has_propensities = array(room, 1), out.features = array(keeps_features ? room : 0, 8);
    out.propensities = array(room, 8);
    decode_rankings(text, starts, ends, 0, n, &out);
    free(out.feature_counts), free(out.schema_numbers), free(out.has_propensities);
    free(out.features), free(out.propensities);
    free(out.timestamps_ms), free(out.candidate_counts), free(out.stratum_numbers);
    free(out.has_ranks), free(out.strings), free(out.ids), free(out.scores), free(out.ranks);
    free_names(&candidates), free_names(&strata), free_names(&schemas);
    return out.n_rows;
}

static int64_t judgments_in(const byte *text, const int64_t *starts, const int64_t *ends, int64_t n,
                            int64_t room)
{
    struct names candidates = names_for(room);
    struct judgments out = {.candidates = &candidates};
    out.timestamps_ms = array(room, 8), out.grade_counts = array(room, 8);
    out.has_judgment_id = array(room, 1), out.strings = array(room, 1);
    out.ids = array(room, 4), out.grades = array(room, 8);
    decode_judgments(text, starts, ends, 0, n, &out);
    free(out.timestamps_ms), free(out.grade_counts), free(out.has_judgment_id);
    free(out.strings), free(out.ids), free(out.grades), free_names(&candidates);
    return out.n_rows;
}

int main(void)
{
    int64_t n, size, decoded[2] = {0, 0};
    read_exactly(powers, sizeof powers);
    set_powers_of_five(powers);
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
        free(text);
        free(starts), free(ends);
    }
    printf("%lld %lld\n", (long long)decoded[0], (long long)decoded[1]);
    return 0;
}
