/* Calls of the compiled part with arrays of exactly the size that is promised, each in memory of its
   own, so that a sanitizer sees every byte too far. */

#include "../../evaluator/wire/native/native.c"

#include <stdio.h>
#include <stdlib.h>

static inline void *array(int64_t n_items, size_t size)
{
    void *items = n_items < 0 ? NULL : malloc(n_items * size);
    if (!items && n_items)
        abort();
    return items;
}

static inline void *given(int64_t n_items, size_t size)
{
    void *items = array(n_items, size);
    if (n_items && fread(items, size, n_items, stdin) != (size_t)n_items)
        abort();
    return items;
}

/* Reads a number from standard input; -1 at its end. */
static inline int64_t number(void)
{
    int64_t value;
    return fread(&value, sizeof value, 1, stdin) == 1 ? value : -1;
}

static inline void read_powers(void)
{
    static uint64_t powers[MOST_POWER - LEAST_POWER + 1][2];
    if (fread(powers, sizeof powers, 1, stdin) != 1)
        abort();
    set_powers_of_five(powers);
}

static inline struct names names_for(int64_t room)
{
    struct names names = {.mask = 1}; /* so that it doubles often */
    int64_t n_places = 4 * (1 + room / 3);
    names.text = array(room, 1), names.all = array(1 + room / 3, sizeof *names.all);
    names.table = calloc(n_places, sizeof *names.table);
    return names;
}

static inline void free_names(struct names *names)
{
    free(names->text), free(names->all), free(names->table);
}

static inline int64_t rankings_in(const byte *text, const int64_t *starts, const int64_t *ends, int64_t n,
                           int64_t room, bool keeps_features)
{
    struct names candidates = names_for(room), strata = names_for(room), schemas = names_for(room);
    struct names levels = names_for(room);
    struct rankings out = {&candidates, &strata, &schemas, &levels,
                           .keeps_features = keeps_features};
    static const char segments[] = "a\x1f" "b\x1f" "c\x1f" "device\x1f" "gerät\x1f" "channel\x1f"
                                   "locale\x1f" "other\x1f";
    out.segments = (const byte *)segments, out.n_segments = MAX_SEGMENTS;
    out.timestamps_ms = array(n, 8), out.candidate_counts = array(n, 8);
    out.feature_counts = array(n, 8), out.exposed_tops = array(n, 8);
    out.stratum_numbers = array(n, 4), out.schema_numbers = array(n, 4);
    out.level_numbers = array(n, 4), out.key_hashes = array(n, KEY_HASH_BYTES);
    out.has_ranks = array(n, 1), out.has_propensities = array(n, 1);
    out.has_exposed = array(n, 1);
    out.ids = array(room / 2, 4), out.scores = array(room / 2, 8);
    out.ranks = array(room / 2, 8), out.features = array(keeps_features ? room / 2 : 0, 8);
    out.propensities = array(room / 2, 8), out.exposed = array(room / 2, 1);
    out.strings = array(room, 1);
    decode_rankings(text, starts, ends, 0, n, &out);
    free(out.key_hashes), free(out.feature_counts), free(out.schema_numbers);
    free(out.has_propensities);
    free(out.features), free(out.propensities);
    free(out.timestamps_ms), free(out.candidate_counts), free(out.stratum_numbers);
    free(out.has_ranks), free(out.strings), free(out.ids), free(out.scores), free(out.ranks);
    free(out.level_numbers), free(out.has_exposed), free(out.exposed), free(out.exposed_tops);
    free_names(&candidates), free_names(&strata), free_names(&schemas), free_names(&levels);
    return out.n_rows;
}

static inline int64_t judgments_in(const byte *text, const int64_t *starts, const int64_t *ends, int64_t n,
                            int64_t room)
{
    struct names candidates = names_for(room);
    struct judgments out = {.candidates = &candidates};
    out.timestamps_ms = array(n, 8), out.grade_counts = array(n, 8);
    out.key_hashes = array(n, KEY_HASH_BYTES), out.has_judgment_id = array(n, 1);
    out.ids = array(room / 2, 4), out.grades = array(room / 2, 8);
    out.strings = array(room, 1);
    decode_judgments(text, starts, ends, 0, n, &out);
    free(out.timestamps_ms), free(out.grade_counts), free(out.has_judgment_id);
    free(out.key_hashes), free(out.strings), free(out.ids), free(out.grades);
    free_names(&candidates);
    return out.n_rows;
}

static inline int64_t settled_in(const byte *text, const int64_t *starts, const int64_t *ends, int64_t n,
                          int64_t room)
{
    static const struct watched watched[] = {{NAME("served"), NAME("top1")},
                                             {NAME("served"), NAME("mrr")},
                                             {NAME("bm25"), NAME("top1")}};
    struct names labels = names_for(room);
    struct settled out = {.labels = &labels, .n_watched = 3, .watched = watched};
    out.columns = array(N_SETTLED_COLUMNS * n, 8);
    out.places = array(room / 2, 8), out.values = array(room / 2, 8), out.ids = array(room, 1);
    read_settled(text, starts, ends, 0, n, &out);
    free(out.columns), free(out.places), free(out.values), free(out.ids);
    free_names(&labels);
    return out.n_rows;
}

/* Reads record sets, and adds to `*n_rows`; returns whether they were read to their end. */
static inline bool record_sets_in(const byte *data, int64_t size, int64_t next_offset, int64_t flags,
                           int64_t *n_rows)
{
    int64_t room = size / MIN_RECORD_BYTES;
    struct record_sets out = {.next_offset = next_offset};
    out.offsets = array(room, 8), out.timestamps_ms = array(room, 8);
    out.key_starts = array(room, 8), out.key_sizes = array(room, 8);
    out.value_starts = array(room, 8), out.value_sizes = array(room, 8);
    out.header_starts = array(room, 8), out.header_sizes = array(room, 8);
    out.keys = array(size, 1), out.values = array(size, 1), out.headers = array(size, 1);
    uint32_t table[256];
    fill_crc_table(table, CRC_32C);
    if (crc32c(data, data + size) != crc_by_table(table, data, data + size))
        abort();
    read_record_sets(data, size, flags, &out);
    *n_rows += out.n_rows;
    free(out.offsets), free(out.timestamps_ms), free(out.key_starts), free(out.key_sizes);
    free(out.value_starts), free(out.value_sizes), free(out.keys), free(out.values);
    free(out.header_starts), free(out.header_sizes), free(out.headers);
    return out.stop == AT_END;
}

/* A plan of this many nodes from standard input: the sizes of its tables, then these. */
static inline struct mapping given_plan(int64_t n_nodes)
{
    struct mapping map = {.n_members = number()};
    int64_t n_paths = number(), n_choices = number(), n_texts = number();
    map.n_slots = number(), map.n_row_slots = number();
    map.nodes = given(n_nodes, sizeof *map.nodes);
    map.members = given(map.n_members, sizeof *map.members);
    map.paths = given(n_paths, sizeof *map.paths);
    map.choices = given(n_choices, sizeof *map.choices), map.texts = given(n_texts, 1);
    map.slots = array(map.n_slots, sizeof *map.slots);
    map.rows = array(MAX_CANDIDATES * map.n_row_slots, sizeof *map.rows);
    return map;
}

/* The tables of a schema from standard input: their sizes and the root, then these. */
static inline struct texts given_schema(int64_t is_protobuf)
{
    int64_t n_types = number(), n_parts = number(), n_names = number();
    struct texts texts = {.root = number(), .is_protobuf = is_protobuf};
    texts.types = given(n_types, sizeof *texts.types);
    texts.parts = given(n_parts, sizeof *texts.parts), texts.names = given(n_names, 1);
    texts.slots = array(n_parts, sizeof *texts.slots);
    return texts;
}

/* Reads one record with a schema; returns whether it has a text. */
static inline bool text_in(const byte *data, int64_t size, int64_t room, struct texts texts)
{
    int64_t start = 0, place, found;
    byte *out = array(room, 1);
    texts.to = out, texts.end = out + room, texts.starts = &place, texts.sizes = &found;
    texts_to_json(data, &start, &size, 1, &texts);
    free(out);
    return found >= 0;
}
