package peers;

import java.util.Arrays;
import java.util.Map;

/** top1, top3, mrr, ndcg@10 and map@10 of one ranked list, in the order of operations of the evaluator. */
record Measures(int rank, int[] order, double[] values) {
  static final String[] NAMES = {"top1", "top3", "mrr", "ndcg@10", "map@10"};
  private static final int CUTOFF = 10;

  /** 1 / log2(rank + 1), each rounded once. */
  private static final double[] DISCOUNTS = {
    1.0,
    0.6309297535714574,
    0.5,
    0.43067655807339306,
    0.3868528072345416,
    0.3562071871080222,
    0.3333333333333333,
    0.3154648767857287,
    0.3010299956639812,
    0.2890648263178879
  };

  static Measures of(double[] scores, String[] ids, Map<String, Double> grades) {
    int[] order = order(scores, ids);
    double[] ranked = new double[ids.length];
    int first = 0, nRelevant = 0;
    for (int i = 0; i < ranked.length; i++) {
      ranked[i] = grades.getOrDefault(ids[order[i]], 0.0);
      if (first == 0 && ranked[i] > 0) {
        first = i + 1;
      }
    }
    double[] ideal = new double[grades.size()];
    int n = 0;
    for (double grade : grades.values()) {
      ideal[n++] = -grade;
      nRelevant += grade > 0 ? 1 : 0;
    }
    Arrays.sort(ideal);
    double dcg = 0, best = 0, precisions = 0;
    int hits = 0;
    for (int i = 0; i < Math.min(CUTOFF, ranked.length); i++) {
      dcg += (Math.pow(2, ranked[i]) - 1) * DISCOUNTS[i];
      if (ranked[i] > 0) {
        precisions += (double) ++hits / (i + 1);
      }
    }
    for (int i = 0; i < Math.min(CUTOFF, ideal.length); i++) {
      best += (Math.pow(2, -ideal[i]) - 1) * DISCOUNTS[i];
    }
    double[] values = {
      first == 1 ? 1 : 0,
      0 < first && first <= 3 ? 1 : 0,
      first == 0 ? 0 : 1.0 / first,
      best == 0 ? 0 : dcg / best,
      nRelevant == 0 ? 0 : precisions / nRelevant
    };
    return new Measures(first, order, values);
  }

  /** Indices by descending score; equal scores by descending id. Insertion sort: lists are short. */
  private static int[] order(double[] scores, String[] ids) {
    int[] order = new int[scores.length];
    for (int i = 0; i < order.length; i++) {
      int at = i;
      for (; at > 0 && before(scores, ids, i, order[at - 1]); at--) {
        order[at] = order[at - 1];
      }
      order[at] = i;
    }
    return order;
  }

  private static boolean before(double[] scores, String[] ids, int a, int b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && ids[a].compareTo(ids[b]) > 0);
  }
}
