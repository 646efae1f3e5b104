package peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadFeature;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Messages of both inputs, read by the streaming parser, and the stored form of a ranking. */
final class Messages {
  private static final JsonFactory JSON =
      JsonFactory.builder().enable(StreamReadFeature.USE_FAST_DOUBLE_PARSER).build();

  /** A ranking as far as results need it; `scores` by ranker, the served one first. */
  record Ranking(
      String traceId,
      String nodeId,
      long timestampMs,
      String model,
      String variant,
      String query,
      String[] ids,
      Map<String, double[]> scores) {}

  record Judgment(String traceId, String nodeId, Map<String, Double> grades) {}

  private Messages() {}

  static Ranking ranking(byte[] value) throws IOException {
    String trace = null, node = null, model = "", variant = "", query = "";
    long timestamp = 0;
    String[] ids = {};
    Map<String, double[]> scores = new LinkedHashMap<>(4);
    scores.put("served", null);
    try (JsonParser in = JSON.createParser(value)) {
      expect(in.nextToken(), JsonToken.START_OBJECT);
      for (String name; (name = in.nextFieldName()) != null; ) {
        in.nextToken();
        switch (name) {
          case "trace_id" -> trace = in.getText();
          case "node_id" -> node = in.getText();
          case "timestamp_ms" -> timestamp = in.getLongValue();
          case "model" -> model = in.getText();
          case "variant" -> variant = in.getText();
          case "query" -> query = in.getText();
          case "candidate_ids" -> ids = texts(in);
          case "scores" -> scores.put("served", numbers(in));
          case "scorers" -> {
            for (String scorer; (scorer = in.nextFieldName()) != null; ) {
              in.nextToken();
              scores.put(scorer, numbers(in));
            }
          }
          default -> in.skipChildren();
        }
      }
    }
    for (double[] each : scores.values()) {
      if (trace == null || node == null || each == null || each.length != ids.length) {
        throw new IOException("malformed ranking");
      }
    }
    return new Ranking(trace, node, timestamp, model, variant, query, ids, scores);
  }

  static Judgment judgment(byte[] value) throws IOException {
    String trace = null, node = null;
    Map<String, Double> grades = new LinkedHashMap<>();
    try (JsonParser in = JSON.createParser(value)) {
      expect(in.nextToken(), JsonToken.START_OBJECT);
      for (String name; (name = in.nextFieldName()) != null; ) {
        in.nextToken();
        switch (name) {
          case "trace_id" -> trace = in.getText();
          case "node_id" -> node = in.getText();
          case "grades" -> {
            for (String id; (id = in.nextFieldName()) != null; ) {
              in.nextToken();
              grades.put(id, in.getDoubleValue());
            }
          }
          default -> in.skipChildren();
        }
      }
    }
    if (trace == null || node == null) {
      throw new IOException("malformed judgment");
    }
    return new Judgment(trace, node, grades);
  }

  static byte[] stored(Ranking ranking) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(1024);
    DataOutputStream out = new DataOutputStream(bytes);
    out.writeUTF(ranking.traceId);
    out.writeUTF(ranking.nodeId);
    out.writeLong(ranking.timestampMs);
    out.writeUTF(ranking.model);
    out.writeUTF(ranking.variant);
    out.writeUTF(ranking.query);
    out.writeInt(ranking.ids.length);
    for (String id : ranking.ids) {
      out.writeUTF(id);
    }
    out.writeInt(ranking.scores.size());
    for (Map.Entry<String, double[]> each : ranking.scores.entrySet()) {
      out.writeUTF(each.getKey());
      for (double score : each.getValue()) {
        out.writeDouble(score);
      }
    }
    return bytes.toByteArray();
  }

  static Ranking loaded(byte[] value) throws IOException {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(value));
    String trace = in.readUTF(), node = in.readUTF();
    long timestamp = in.readLong();
    String model = in.readUTF(), variant = in.readUTF(), query = in.readUTF();
    String[] ids = new String[in.readInt()];
    for (int i = 0; i < ids.length; i++) {
      ids[i] = in.readUTF();
    }
    Map<String, double[]> scores = new LinkedHashMap<>(4);
    for (int left = in.readInt(); left > 0; left--) {
      String ranker = in.readUTF();
      double[] each = new double[ids.length];
      for (int i = 0; i < each.length; i++) {
        each[i] = in.readDouble();
      }
      scores.put(ranker, each);
    }
    return new Ranking(trace, node, timestamp, model, variant, query, ids, scores);
  }

  private static String[] texts(JsonParser in) throws IOException {
    List<String> found = new ArrayList<>(32);
    while (in.nextToken() != JsonToken.END_ARRAY) {
      found.add(in.getText());
    }
    return found.toArray(String[]::new);
  }

  private static double[] numbers(JsonParser in) throws IOException {
    double[] found = new double[32];
    int n = 0;
    while (in.nextToken() != JsonToken.END_ARRAY) {
      if (n == found.length) {
        found = java.util.Arrays.copyOf(found, 2 * n);
      }
      found[n++] = in.getDoubleValue();
    }
    return java.util.Arrays.copyOf(found, n);
  }

  private static void expect(JsonToken token, JsonToken wanted) throws IOException {
    if (token != wanted) {
      throw new IOException("malformed message");
    }
  }
}
