/*
 * The inner loop of ejection search, which `ejection.py` describes. All memory is the caller's.
 */
#include <stdint.h>
#include <string.h>

typedef int64_t i64;
typedef uint64_t u64;

static const i64 FAR = (i64)1 << 62;
static const i64 FIXED = (i64)1 << 40; /* the weight of what never moves */
static const i64 SLOWEST = 20, FASTEST = 2;
static const i64 PENALTY = 3; /* the ejection penalty: what a buffer that ejects others weighs more from then on */

/* A problem, and the state of a search in it; the fields are those of `_POINTERS` and `_NUMBERS` in ejection.py. */
typedef struct {
    const i64 *sizes, *first, *other, *low, *high, *alignments, *first_range, *range_start, *range_end;
    i64 *offsets, *weights, *outside, *best;
    /* Scratch: what is placed by start and by end, the ranks in both, and the ends of spans with their weights. */
    i64 *by_start, *by_end, *start_ranks, *end_ranks, *entries, *lows, *low_weights, *highs, *high_weights;
    u64 *marks;
    i64 count, goal, left, target, height, pace, stale, patience, taken, done;
    u64 random;
    i64 placed;
} Search;

static i64 draw(Search *s, i64 below) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (i64)((s->random >> 32) * (u64)below >> 32);
}

static i64 lowest(const Search *s, i64 buffer, i64 offset) {
    i64 step = s->alignments[buffer];
    for (i64 r = s->first_range[buffer]; r < s->first_range[buffer + 1]; r++) {
        if (offset > s->range_end[r]) continue;
        i64 place = s->range_start[r];
        if (offset > place) place = step == 1 ? offset : (offset + step - 1) / step * step;
        if (place <= s->range_end[r]) return place;
    }
    return FAR;
}

static i64 highest(const Search *s, i64 buffer, i64 offset) {
    i64 step = s->alignments[buffer];
    for (i64 r = s->first_range[buffer + 1] - 1; r >= s->first_range[buffer]; r--) {
        if (offset < s->range_start[r]) continue;
        i64 place = offset < s->range_end[r] ? offset : s->range_end[r];
        return step == 1 ? place : place / step * step;
    }
    return -1;
}

static i64 key(const Search *s, i64 buffer, const i64 *sizes) {
    return s->offsets[buffer] + (sizes ? sizes[buffer] : 0);
}

/* Into a list of what is placed, which ascends by start or, with sizes, by end. */
static void insert(const Search *s, i64 *list, i64 *ranks, const i64 *sizes, i64 buffer) {
    i64 value = key(s, buffer, sizes), at = s->placed;
    for (; at > 0 && key(s, list[at - 1], sizes) > value; at--) {
        list[at] = list[at - 1];
        ranks[list[at]] = at;
    }
    list[at] = buffer;
    ranks[buffer] = at;
}

static void erase(const Search *s, i64 *list, i64 *ranks, i64 buffer) {
    for (i64 at = ranks[buffer]; at < s->placed - 1; at++) {
        list[at] = list[at + 1];
        ranks[list[at]] = at;
    }
}

static void put(Search *s, i64 buffer, i64 offset) {
    s->offsets[buffer] = offset;
    insert(s, s->by_start, s->start_ranks, 0, buffer);
    insert(s, s->by_end, s->end_ranks, s->sizes, buffer);
    s->placed++;
}

static void eject(Search *s, i64 buffer) {
    erase(s, s->by_start, s->start_ranks, buffer);
    erase(s, s->by_end, s->end_ranks, buffer);
    s->placed--;
    s->offsets[buffer] = -1;
    s->outside[s->left++] = buffer;
}

static void collect(Search *s) {
    s->placed = 0;
    for (i64 b = 0; b < s->count; b++)
        if (s->offsets[b] >= 0) put(s, b, s->offsets[b]);
}

/* One side of the spans in which a buffer may not begin, ascending, with the weights of those that forbid them. */
static i64 sides(Search *s, i64 buffer, const i64 *list, const i64 *ranks, const i64 *side, i64 *values,
                 i64 *weights) {
    i64 words = (s->placed + 63) / 64, found = 0, end = s->first[buffer + 1];
    memset(s->marks, 0, (size_t)words * sizeof(u64));
    for (i64 e = end - 1; e >= s->first[buffer]; e--) {
        i64 b = s->other[e];
        if (s->offsets[b] < 0) continue;
        s->marks[ranks[b] >> 6] |= (u64)1 << (ranks[b] & 63);
        s->entries[ranks[b]] = e;
    }
    for (i64 word = 0; word < words; word++)
        for (u64 bits = s->marks[word]; bits; bits &= bits - 1) {
            i64 rank = word * 64 + __builtin_ctzll(bits), b = list[rank];
            for (i64 e = s->entries[rank]; e < end && s->other[e] == b; e++) {
                i64 value = s->offsets[b] + side[e], slot = found++;
                /* It is the last already, except among windows. */
                for (; slot > 0 && values[slot - 1] > value; slot--) {
                    values[slot] = values[slot - 1];
                    weights[slot] = weights[slot - 1];
                }
                values[slot] = value;
                weights[slot] = s->weights[b];
            }
        }
    return found;
}

/* The place below the target at which least has to leave, and the weight of that; -1 if there is no place. */
static i64 cheapest(Search *s, i64 buffer, i64 *cost) {
    i64 last = highest(s, buffer, s->target - s->sizes[buffer]), at = lowest(s, buffer, 0);
    i64 count = sides(s, buffer, s->by_start, s->start_ranks, s->low, s->lows, s->low_weights);
    sides(s, buffer, s->by_end, s->end_ranks, s->high, s->highs, s->high_weights);
    i64 opened = 0, closed = 0, low = 0, high = 0, sum = 0, ties = 0, place = -1;
    *cost = FAR;
    while (at <= last) {
        while (opened < count && s->lows[opened] < at) sum += s->low_weights[opened++];
        while (closed < count && s->highs[closed] <= at) sum -= s->high_weights[closed++];
        if (sum < *cost) {
            *cost = sum;
            place = at;
            ties = 1;
            if (!sum) break;
        } else if (sum == *cost && !draw(s, ++ties)) {
            place = at;
        }
        if (at == last) break;
        i64 next = last, above = 0, below = 0;
        for (; high < count && (above = lowest(s, buffer, s->highs[high])) <= at; high++) continue;
        if (high < count && above < next) next = above;
        for (; low < count && (below = highest(s, buffer, s->lows[low])) <= at; low++) continue;
        if (low < count && below < next) next = below;
        at = next;
    }
    return place;
}

/* From the best plan again, without what ends above a new target. */
void penstock_restart(Search *s) {
    s->target = s->height - 1 - ((s->height - s->goal) >> s->pace);
    if (s->target < s->goal) s->target = s->goal;
    s->stale = 0;
    s->left = 0;
    memcpy(s->offsets, s->best, (size_t)s->count * sizeof(i64));
    for (i64 b = 0; b < s->count; b++) {
        if (s->weights[b] >= FIXED || (s->offsets[b] >= 0 && s->offsets[b] + s->sizes[b] <= s->target)) continue;
        s->offsets[b] = -1;
        s->outside[s->left++] = b;
    }
    collect(s);
}

/* Half of what the weights have come to. */
static void forget(Search *s) {
    for (i64 b = 0; b < s->count; b++)
        if (s->weights[b] < FIXED) s->weights[b] = 1 + s->weights[b] / 2;
}

static void record(Search *s) {
    i64 height = 0;
    for (i64 b = 0; b < s->count; b++)
        if (s->offsets[b] + s->sizes[b] > height) height = s->offsets[b] + s->sizes[b];
    if (height >= s->height) return;
    s->height = height;
    memcpy(s->best, s->offsets, (size_t)s->count * sizeof(i64));
    if (s->pace > FASTEST) s->pace--;
}

/* Go on for a number of steps, or until it is done. */
void penstock_eject(Search *s, i64 steps) {
    collect(s);
    for (i64 end = s->taken + steps; s->taken < end;) {
        if (!s->left) {
            record(s);
            if (s->height <= s->goal) s->done = 1;
            if (s->done) return;
            penstock_restart(s);
            if (!s->left) s->done = 1;
            if (s->done) return;
        }
        i64 pick = 0, cost;
        for (i64 at = 1; at < s->left; at++)
            if (s->weights[s->outside[at]] > s->weights[s->outside[pick]]) pick = at;
        i64 buffer = s->outside[pick], place = cheapest(s, buffer, &cost);
        int stuck = place < 0 || cost >= FIXED;
        s->taken++;
        if (stuck || ++s->stale > s->patience) {
            if (stuck && (s->height == FAR || s->target >= s->height - 1)) s->done = 1;
            if (s->done) return;
            if (s->pace < SLOWEST) s->pace++;
            if (!stuck) forget(s);
            penstock_restart(s);
            continue;
        }
        s->outside[pick] = s->outside[--s->left];
        if (cost) {
            s->weights[buffer] += PENALTY;
            for (i64 e = s->first[buffer]; e < s->first[buffer + 1]; e++) {
                i64 b = s->other[e], offset = s->offsets[b];
                if (offset >= 0 && offset + s->low[e] < place && place < offset + s->high[e]) eject(s, b);
            }
        }
        put(s, buffer, place);
    }
}

/* First fit: all that has no place yet, in an order, at the lowest place that is free; 0 if one finds none. */
int penstock_first_fit(Search *s, const i64 *order) {
    s->target = FAR;
    collect(s);
    for (i64 at = 0; at < s->count; at++) {
        i64 cost;
        if (s->offsets[order[at]] >= 0) continue;
        i64 place = cheapest(s, order[at], &cost);
        if (place < 0 || cost) return 0;
        put(s, order[at], place);
    }
    return 1;
}
