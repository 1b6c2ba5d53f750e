import io.apicurio.registry.utils.converter.avro.AvroData;
import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import java.io.ByteArrayOutputStream;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

/** As Record, with keys and values in Avro, framed as Confluent's converter does, and headers as Connect's default. Each
 * new schema is a line "schema NUMBER TEXT" in front of the record that has it first; the text is in base64, too. */
public class InAvro {
    private static final AvroData DATA = new AvroData(1000);
    private static final SimpleHeaderConverter HEADERS = new SimpleHeaderConverter();
    private static final Map<org.apache.avro.Schema, Integer> SCHEMAS = new LinkedHashMap<>();

    private static String text(byte[] data) {
        return data == null ? "-" : "=" + Base64.getEncoder().encodeToString(data);
    }

    private static byte[] framed(Schema schema, Object value, PrintStream out) throws Exception {
        if (value == null) {
            return null;
        }
        org.apache.avro.Schema avro = DATA.fromConnectSchema(schema);
        Integer number = SCHEMAS.get(avro);
        if (number == null) {
            number = SCHEMAS.size() + 1;
            SCHEMAS.put(avro, number);
            out.println("schema " + number + " " + text(avro.toString().getBytes("UTF-8")));
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        bytes.write(0);
        bytes.write(ByteBuffer.allocate(4).putInt(number).array());
        BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(bytes, null);
        new GenericDatumWriter<Object>(avro).write(DATA.fromConnectData(schema, value), encoder);
        encoder.flush();
        return bytes.toByteArray();
    }

    private static void print(SourceRecord record, PrintStream out) {
        try {
            byte[] key = framed(record.keySchema(), record.key(), out);
            byte[] value = framed(record.valueSchema(), record.value(), out);
            StringBuilder line = new StringBuilder();
            line.append(record.topic()).append(' ').append(text(key)).append(' ').append(text(value));
            for (Header header : record.headers()) {
                if (!header.key().startsWith("__debezium.context")) {
                    byte[] data = HEADERS.fromConnectHeader(record.topic(), header.key(), header.schema(), header.value());
                    line.append(' ').append(header.key()).append(text(data));
                }
            }
            out.println(line);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            settings.load(file);
        }
        PrintStream out = new PrintStream(new FileOutputStream(arguments[1]), true);
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
            .using(settings)
            .using((success, message, error) -> System.err.println("ended: " + success + " " + message + " " + error))
            .notifying(event -> print(event.value(), out))
            .build();
        new Thread(engine).start();
        while (System.in.read() >= 0) {
            continue;
        }
        System.exit(0);
    }
}
