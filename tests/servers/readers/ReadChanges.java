import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.functions.util.ListCollector;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.debezium.DebeziumJsonDeserializationSchema;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;

/** Reads all committed records of a topic as Java's consumers do, and writes each as a line of JSON: where it is, what
 * Kafka Connect's converter made of key and value, and, for a table (id, note) whose old rows are whole, the changes
 * that Flink's decoder of Debezium's format made of the value. Arguments: brokers, topic, and "flink" for the last. */
public class ReadChanges {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        JsonConverter keys = converter(true), values = converter(false);
        DebeziumJsonDeserializationSchema flink = arguments.length > 2 ? flink() : null;
        for (ConsumerRecord<byte[], byte[]> record : committed(arguments[0], topic)) {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("partition", record.partition());
            line.put("offset", record.offset());
            line.put("key", told(keys.toConnectData(topic, record.headers(), record.key())));
            line.put("value", told(values.toConnectData(topic, record.headers(), record.value())));
            List<String> headers = new ArrayList<>();
            record.headers().forEach(header -> headers.add(header.key()));
            line.put("headers", headers);
            if (flink != null) {
                line.put("flink", changes(flink, record.value()));
            }
            System.out.println(JSON.writeValueAsString(line));
        }
    }

    private static JsonConverter converter(boolean isKey) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", "false"), isKey);
        return made;
    }

    private static Object told(SchemaAndValue found) {
        if (found.schema() != null) {
            throw new IllegalStateException("a schema where none is sent: " + found.schema());
        }
        return found.value();
    }

    private static List<ConsumerRecord<byte[], byte[]>> committed(String brokers, String topic) {
        Map<String, Object> settings = Map.of("bootstrap.servers", brokers, "isolation.level", "read_committed");
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(each -> partitions.add(new TopicPartition(topic, each.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (ends.entrySet().stream().anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
                consumer.poll(Duration.ofMillis(500)).forEach(found::add);
            }
        }
        return found;
    }

    private static DebeziumJsonDeserializationSchema flink() throws Exception {
        DataType row = DataTypes.ROW(DataTypes.FIELD("id", DataTypes.INT()), DataTypes.FIELD("note", DataTypes.STRING()));
        var produced = InternalTypeInfo.<RowData>of((RowType) row.getLogicalType());
        var made = new DebeziumJsonDeserializationSchema(row, List.of(), produced, false, false, TimestampFormat.ISO_8601);
        made.open(null);
        return made;
    }

    private static List<List<Object>> changes(DebeziumJsonDeserializationSchema flink, byte[] value) throws Exception {
        List<RowData> rows = new ArrayList<>();
        flink.deserialize(value, new ListCollector<>(rows));
        List<List<Object>> found = new ArrayList<>();
        for (RowData row : rows) {
            List<Object> change = new ArrayList<>();
            change.add(row.getRowKind().shortString());
            change.add(row.isNullAt(0) ? null : row.getInt(0));
            change.add(row.isNullAt(1) ? null : row.getString(1).toString());
            found.add(change);
        }
        return found;
    }
}
