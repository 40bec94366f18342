import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ShareMemberDescription;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.TopicExistsException;

/** Topics of one partition, each with a share group of the same name that reads it from its beginning. */
final class Cluster implements AutoCloseable {
    private final Admin admin;

    Cluster(Settings set) {
        Map<String, Object> config =
                Map.of("bootstrap.servers", set.servers(), "default.api.timeout.ms", 20_000, "request.timeout.ms", 10_000);
        admin = Admin.create(config);
    }

    void declare(String queue) throws InterruptedException, ExecutionException {
        try {
            admin.createTopics(List.of(new NewTopic(queue, 1, (short) 1))).all().get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw error;
            }
        }
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, queue);
        ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
        AlterConfigOp set = new AlterConfigOp(earliest, AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(group, List.of(set))).all().get();
    }

    /** Return how many messages the group has not acknowledged: all of them if it has never read. */
    long depth(String queue) throws InterruptedException, ExecutionException {
        TopicPartition only = new TopicPartition(queue, 0);
        try {
            var asked = admin.listShareGroupOffsets(Map.of(queue, new ListShareGroupOffsetsSpec()));
            var found = asked.partitionsToOffsetInfo(queue).get().get(only);
            if (found != null && found.lag().isPresent()) {
                return found.lag().get();
            }
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof GroupIdNotFoundException)) {
                throw error;
            }
        }
        return admin.listOffsets(Map.of(only, OffsetSpec.latest())).partitionResult(only).get().offset();
    }

    /** Wait until so many members of the group have been told what to read. */
    void waitForMembers(String queue, int many, Tally tally) throws InterruptedException, ExecutionException {
        double end = Tally.now() + Load.PATIENCE;
        while (!tally.isOver() && told(queue) < many) {
            if (Tally.now() > end) {
                throw new IllegalStateException("the share group was not complete in " + Load.PATIENCE + " seconds");
            }
            Thread.sleep(5);
        }
    }

    private long told(String queue) throws InterruptedException, ExecutionException {
        try {
            Collection<ShareMemberDescription> members =
                    admin.describeShareGroups(List.of(queue)).describedGroups().get(queue).get().members();
            return members.stream().filter(it -> !it.assignment().topicPartitions().isEmpty()).count();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof GroupIdNotFoundException) {
                return 0;
            }
            throw error;
        }
    }

    @Override
    public void close() {
        admin.close();
    }
}
