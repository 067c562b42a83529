import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import org.apache.arrow.flight.Action;
import org.apache.arrow.flight.CallOption;
import org.apache.arrow.flight.Criteria;
import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightEndpoint;
import org.apache.arrow.flight.FlightInfo;
import org.apache.arrow.flight.FlightRuntimeException;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.Location;
import org.apache.arrow.flight.PutResult;
import org.apache.arrow.flight.SyncPutListener;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * A client of penstock by docs/wire.md alone: flight-core and no code of penstock's.
 *
 * <p>Wire HOST:PORT TOKEN lists, reads store/seed, and writes store/java, store/java-write and topic/java; it prints
 * what the server has answered, as one JSON object.
 */
public final class Wire {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Schema SCHEMA =
      new Schema(
          List.of(
              new Field("id", FieldType.notNullable(new ArrowType.Int(64, true)), null),
              new Field("city", FieldType.nullable(ArrowType.Utf8.INSTANCE), null)));

  private final BufferAllocator memory;
  private final FlightClient client;
  private final CallOption known;

  private Wire(BufferAllocator memory, FlightClient client, String token) {
    this.memory = memory;
    this.client = client;
    this.known = client.authenticateBasicToken("anybody", token).orElseThrow();
  }

  public static void main(String[] args) throws Exception {
    String[] address = args[0].split(":");
    Location location = Location.forGrpcInsecure(address[0], Integer.parseInt(address[1]));
    try (BufferAllocator memory = new RootAllocator();
        FlightClient client = FlightClient.builder(memory, location).build()) {
      System.out.println(JSON.writeValueAsString(new Wire(memory, client, args[1]).run()));
    }
  }

  private Map<String, Object> run() throws Exception {
    Map<String, Object> seed = Map.of("v", 1, "path", "store/seed");
    Map<String, Object> seen = new LinkedHashMap<>();
    seen.put("listed", list());
    seen.put("seed", read(seed));
    seen.put(
        "filtered",
        read(Map.of("v", 1, "path", "store/seed", "columns", List.of("id"), "filter", "city is null")));
    seen.put("receipt", put(FlightDescriptor.path("store", "java"), true, new long[] {1, 2, 3}, known));
    seen.put("appended", put(FlightDescriptor.path("topic", "java"), true, new long[] {1}, known));
    seen.put("summary", write());
    seen.put("cut", refusal(() -> put(FlightDescriptor.path("store", "java-cut"), false, new long[] {1}, known)));
    seen.put("denied", refusal(() -> client.getInfo(command(seed))));
    return seen;
  }

  /** Return the paths of everything, by the kind that the server calls it. */
  private Map<String, Object> list() throws Exception {
    Map<String, Object> paths = new TreeMap<>();
    for (FlightInfo info : client.listFlights(Criteria.ALL, known)) {
      Map<String, Object> entry = decoded(info.getAppMetadata());
      paths.put((String) entry.get("path"), entry.get("kind"));
    }
    return paths;
  }

  /** Count the rows of all endpoints, in order, and add their ids up; the tickets need no token. */
  private Map<String, Object> read(Map<String, Object> what) throws Exception {
    FlightInfo info = client.getInfo(command(what), known);
    long rows = 0;
    long sum = 0;
    long last = -1;
    boolean ordered = true;
    for (FlightEndpoint endpoint : info.getEndpoints()) {
      try (FlightStream stream = client.getStream(endpoint.getTicket())) {
        while (stream.next()) {
          BigIntVector ids = (BigIntVector) stream.getRoot().getVector("id");
          for (int row = 0; row < ids.getValueCount(); row++) {
            ordered &= ids.get(row) > last;
            last = ids.get(row);
            sum += last;
            rows++;
          }
        }
      }
    }
    return Map.of("endpoints", info.getEndpoints().size(), "rows", rows, "sum", sum, "ordered", ordered);
  }

  /** Make a dataset of two attempts of three; the tasks have the ticket alone. */
  private Map<String, Object> write() throws Exception {
    Map<String, Object> opened = call("write.open", Map.of("v", 1, "path", "store/java-write"), known);
    List<Object> attempts = new ArrayList<>();
    for (long first = 0; first < 6; first += 2) {
      String attempt = UUID.randomUUID().toString();
      FlightDescriptor task = command(Map.of("v", 1, "ticket", opened.get("ticket"), "attempt", attempt));
      attempts.add(put(task, true, new long[] {first, first + 1}).get("attempt"));
    }
    return call(
        "write.finish", Map.of("v", 1, "ticket", opened.get("ticket"), "attempts", attempts.subList(1, 3)));
  }

  /** Send each id as a batch of its own, then the trailer, and return the receipt. */
  private Map<String, Object> put(FlightDescriptor to, boolean whole, long[] ids, CallOption... options)
      throws Exception {
    try (VectorSchemaRoot root = VectorSchemaRoot.create(SCHEMA, memory);
        SyncPutListener answers = new SyncPutListener()) {
      FlightClient.ClientStreamListener stream = client.startPut(to, root, answers, options);
      for (long id : ids) {
        root.allocateNew();
        ((BigIntVector) root.getVector("id")).setSafe(0, id);
        ((VarCharVector) root.getVector("city")).setSafe(0, ("city " + id).getBytes(StandardCharsets.UTF_8));
        root.setRowCount(1);
        stream.putNext();
      }
      if (whole) {
        byte[] trailer = JSON.writeValueAsBytes(Map.of("v", 1, "batches", ids.length, "rows", ids.length));
        ArrowBuf buffer = memory.buffer(trailer.length);
        buffer.writeBytes(trailer);
        stream.putMetadata(buffer);
      }
      stream.completed();
      try (PutResult answer = answers.read()) {
        if (answer == null) {
          stream.getResult(); // raises what the server has to say
          throw new IllegalStateException("no receipt and no error");
        }
        byte[] receipt = new byte[(int) answer.getApplicationMetadata().readableBytes()];
        answer.getApplicationMetadata().readBytes(receipt);
        return decoded(receipt);
      }
    }
  }

  private Map<String, Object> call(String name, Map<String, Object> body, CallOption... options) throws Exception {
    return decoded(client.doAction(new Action(name, JSON.writeValueAsBytes(body)), options).next().getBody());
  }

  private interface Call {
    Object run() throws Exception;
  }

  /** Return the error of a call, and the code that its metadata has. */
  private static Map<String, Object> refusal(Call call) throws Exception {
    try {
      call.run();
      return Map.of();
    } catch (FlightRuntimeException | ExecutionException error) {
      FlightRuntimeException refused =
          (FlightRuntimeException) (error instanceof ExecutionException ? error.getCause() : error);
      byte[] details = refused.status().metadata().getByte("grpc-status-details-bin");
      return Map.of("text", refused.getMessage(), "details", decoded(details));
    }
  }

  private static FlightDescriptor command(Map<String, Object> body) throws Exception {
    return FlightDescriptor.command(JSON.writeValueAsBytes(body));
  }

  private static Map<String, Object> decoded(byte[] text) throws Exception {
    return JSON.readValue(text, new TypeReference<Map<String, Object>>() {});
  }
}
