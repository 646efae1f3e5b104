package peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.StreamWriteFeature;
import com.fasterxml.jackson.core.util.ByteArrayBuilder;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/** Matches judgments to stored rankings, and forwards one result per pair. */
final class Join implements Processor<byte[], byte[], byte[], byte[]> {
  static final String RANKINGS = "rankings-by-key", EARLY = "early-judgments";
  private static final JsonFactory JSON =
      JsonFactory.builder().enable(StreamWriteFeature.USE_FAST_DOUBLE_WRITER).build();

  private final boolean ofRankings;
  private final Totals totals;
  private ProcessorContext<byte[], byte[]> context;
  private KeyValueStore<String, byte[]> rankings, early;

  Join(boolean ofRankings, Totals totals) {
    this.ofRankings = ofRankings;
    this.totals = totals;
  }

  @Override
  public void init(ProcessorContext<byte[], byte[]> context) {
    this.context = context;
    rankings = context.getStateStore(RANKINGS);
    early = context.getStateStore(EARLY);
  }

  @Override
  public void process(Record<byte[], byte[]> record) {
    totals.begin();
    try {
      if (ofRankings) {
        onRanking(record);
      } else {
        onJudgment(record);
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    totals.read();
  }

  private void onRanking(Record<byte[], byte[]> record) throws IOException {
    Messages.Ranking ranking = Messages.ranking(record.value());
    String key = ranking.traceId() + '\0' + ranking.nodeId();
    rankings.put(key, Messages.stored(ranking));
    byte[] waiting = early.get(key);
    if (waiting != null) {
      early.delete(key);
      evaluate(record, ranking, Messages.judgment(waiting));
    }
  }

  private void onJudgment(Record<byte[], byte[]> record) throws IOException {
    Messages.Judgment judgment = Messages.judgment(record.value());
    String key = judgment.traceId() + '\0' + judgment.nodeId();
    byte[] ranking = rankings.get(key);
    if (ranking == null) {
      early.put(key, record.value());
    } else {
      evaluate(record, Messages.loaded(ranking), judgment);
    }
  }

  private void evaluate(
      Record<byte[], byte[]> record, Messages.Ranking ranking, Messages.Judgment judgment)
      throws IOException {
    Map<String, Measures> measured = new LinkedHashMap<>(4);
    for (Map.Entry<String, double[]> each : ranking.scores().entrySet()) {
      Measures one = Measures.of(each.getValue(), ranking.ids(), judgment.grades());
      measured.put(each.getKey(), one);
      totals.add(ranking.model(), ranking.variant(), each.getKey(), one.values());
    }
    context.forward(record.withValue(result(ranking, judgment, measured)));
  }

  private static byte[] result(
      Messages.Ranking ranking, Messages.Judgment judgment, Map<String, Measures> measured)
      throws IOException {
    ByteArrayBuilder bytes = new ByteArrayBuilder(1024);
    try (JsonGenerator out = JSON.createGenerator(bytes)) {
      out.writeStartObject();
      out.writeStringField("trace_id", ranking.traceId());
      out.writeStringField("node_id", ranking.nodeId());
      out.writeNumberField("event_time_ms", ranking.timestampMs());
      out.writeStringField("model", ranking.model());
      out.writeStringField("variant", ranking.variant());
      out.writeStringField("query", ranking.query());
      out.writeNumberField("revision", 1);
      out.writeObjectFieldStart("grades");
      for (Map.Entry<String, Double> grade : judgment.grades().entrySet()) {
        out.writeNumberField(grade.getKey(), grade.getValue());
      }
      out.writeEndObject();
      out.writeObjectFieldStart("rank");
      for (Map.Entry<String, Measures> each : measured.entrySet()) {
        if (each.getValue().rank() == 0) {
          out.writeNullField(each.getKey());
        } else {
          out.writeNumberField(each.getKey(), each.getValue().rank());
        }
      }
      out.writeEndObject();
      out.writeObjectFieldStart("top3");
      for (Map.Entry<String, Measures> each : measured.entrySet()) {
        int[] order = each.getValue().order();
        double[] scores = ranking.scores().get(each.getKey());
        out.writeArrayFieldStart(each.getKey());
        for (int i = 0; i < Math.min(3, order.length); i++) {
          out.writeStartArray();
          out.writeString(ranking.ids()[order[i]]);
          out.writeNumber(scores[order[i]]);
          out.writeEndArray();
        }
        out.writeEndArray();
      }
      out.writeEndObject();
      out.writeObjectFieldStart("values");
      for (Map.Entry<String, Measures> each : measured.entrySet()) {
        out.writeObjectFieldStart(each.getKey());
        for (int i = 0; i < Measures.NAMES.length; i++) {
          out.writeNumberField(Measures.NAMES[i], each.getValue().values()[i]);
        }
        out.writeEndObject();
      }
      out.writeEndObject();
      out.writeEndObject();
    }
    return bytes.toByteArray();
  }
}
