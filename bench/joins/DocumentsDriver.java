// Runs the FP-tree of the authors' released program (package ssfsj) over one file of documents.
//
//     java -cp CLASSES DocumentsDriver FILE ROUNDS
//
// FILE has a document a line, its pairs name=value separated by tabs. Prints CPU seconds of the whole
// process and pairs as the program counts them, both directions of each, once a round.

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import ssfsj.fpTree.FpTreeInstantiator;
import ssfsj.utils.KeyValuePair;

public class DocumentsDriver {
    public static void main(String[] arguments) throws Exception {
        List<String> lines = Files.readAllLines(Paths.get(arguments[0]));
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int round = 0; round < Integer.parseInt(arguments[1]); round++) {
            HashMap<String, HashSet<KeyValuePair>> documents = new HashMap<>();
            for (int number = 0; number < lines.size(); number++) {
                HashSet<KeyValuePair> pairs = new HashSet<>();
                for (String pair : lines.get(number).split("\t")) {
                    int at = pair.indexOf('=');
                    pairs.add(new KeyValuePair(pair.substring(0, at), pair.substring(at + 1)));
                }
                documents.put(Integer.toString(number), pairs);
            }
            System.gc();
            long begun = system.getProcessCpuTime();
            FpTreeInstantiator tree = new FpTreeInstantiator();
            tree.createFpTree(documents);
            long found = 0;
            for (Set<String> partners : tree.findJoinableDocumentsThroughThreads().values()) {
                found += partners.size();
            }
            System.out.println((system.getProcessCpuTime() - begun) / 1e9 + " " + found);
        }
    }
}
