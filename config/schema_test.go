package config

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/omnibus-runtime/omnibus/internal/golden"
)

// schemaFile is where editors find the schema.
const schemaFile = "../docs/pipeline.schema.json"

func TestSchemaIsWritten(t *testing.T) {
	golden.Compare(t, schemaFile, Schema()) // go generate ./config writes it as well
}

// compiled is the schema as a validator of others takes it. That checks it
// against the schema of schemas as well.
func compiled(t testing.TB) *jsonschema.Schema {
	t.Helper()
	text, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("pipeline.schema.json", text); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("pipeline.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asEditor validates a text as an editor would: YAML is read, but no variable
// and no other file. It is false where the text is no YAML to begin with.
func asEditor(t testing.TB, s *jsonschema.Schema, text []byte) (yaml bool, refusal error) {
	t.Helper()
	c := &checker{file: "p.yaml"}
	root := c.parse(text)
	if root == nil || len(c.problems) > 0 {
		return false, nil
	}
	values, err := json.Marshal(c.setting(root))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(values))
	if err != nil {
		t.Fatal(err)
	}
	return true, s.Validate(value)
}

func TestSchemaAcceptsFiles(t *testing.T) {
	s := compiled(t)
	accept := func(t *testing.T, text []byte) {
		t.Helper()
		if ok, err := asEditor(t, s, text); err != nil || !ok {
			t.Errorf("%s\n%v", text, err)
		}
	}
	for _, pattern := range []string{"testdata/valid/*.yaml", "../examples/*/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) < 2 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				accept(t, text)
			})
		}
	}
	for name, text := range map[string]string{
		"a file on another":          "base_config: ../b.yaml\nconnectors: {c: {extra: {a: 1}}}\nstages: []",
		"settings that are taken":    "base_config: b.yaml\nomnibus: {memory: null}\nstages: [{stage_id: 0, omnibus: {batch: {wait: null}, exec: null}}]",
		"platforms":                  two + "platforms: {npu: {stages: [{stage_id: a, omnibus: {replicas: 2}}], connectors: {c: {extra: {a: 1}}}}, xpu: null}",
		"nothing for the sections":   two + "connectors:\nedges:\nruntime:\nomnibus:\nplatforms:\nbase_config:\npipeline:",
		"variables for every number": "stages: [{stage_id: '${A}', max_inflight: '${A}', final_output: '${A}', omnibus: {replicas: '${A}', replay: '${A}', routing: '${A}', grace: '${A}s', batch: {size: '${A}'}}}]\nomnibus: {name: 'a${A}', ring_bytes: '${A}GB', allow_uids: ['${A}']}\nconnectors: {c: {name: '${A}'}, d: {name: SharedMemoryConnector, extra: {codec_streaming: '${A}', codec_chunk_frames: [1, '${A}']}}}",
		"tensors of a connector":     two + "connectors: {c: {name: CudaIpcConnector}, d: {name: CudaIpcConnector, extra: {tensor_transport: cuda_ipc_pool, min_bytes: 4096, voice: x}}, e: {name: CudaIpcConnector, extra: {tensor_transport: '${A}', min_bytes: null}}}",
		"sizes and durations":        two + "omnibus: {ring_bytes: 64 MiB, inline_bytes: 4kB, grace: 1h2m3.5s, stall_timeout: .5µs}",
	} {
		t.Run(name, func(t *testing.T) { accept(t, []byte(text)) })
	}
}

// beyondSchema are the tests of problems that no schema can see, or that this
// one leaves to the checker so as never to refuse a good file.
var beyondSchema = []string{
	// The other file is missing, not the schema of this one.
	"base file",
	// It takes several places of a file to see them.
	"a section in two places", "repeated stage, as number and text", "exec and attach", "routing of a stage with state",
	"a heap that others cannot read", "join with none", "join with one input", "undefined connector", "undefined connector, none defined",
	"tensors in files", "tensors by connector and by edge", "ends that disagree", "ends that disagree, receiver first", "unknown stages", "repeated edge", "repeated source", "a stage that a list of edges has left out",
	"self-loop", "self-loop of a source", "cycle", "two cycles, one leading to the other",
	// It takes more than a pattern.
	"mistyped keys beside those of the model", "open to the network", "no place for HTTP", "no port for HTTP",
}

func TestSchemaRefuses(t *testing.T) {
	s := compiled(t)
	for _, tt := range problemTests {
		t.Run(tt.name, func(t *testing.T) {
			ok, err := asEditor(t, s, []byte(tt.text))
			switch beyond := slices.Contains(beyondSchema, tt.name); {
			case !ok && beyond:
				t.Error("is no YAML: take it from the list")
			case !ok:
			case err == nil && !beyond:
				t.Errorf("accepted:\n%s", tt.text)
			case err != nil && beyond:
				t.Errorf("refused, so take it from the list: %v", err)
			}
		})
	}
	for _, name := range beyondSchema {
		if !slices.ContainsFunc(problemTests, func(tt problemTest) bool { return tt.name == name }) {
			t.Errorf("there is no test of problems %q", name)
		}
	}
	for name, text := range map[string]string{
		"a platform with a base":      two + "platforms: {npu: {base_config: x}}",
		"a platform's typing error":   two + "platforms: {npu: {omnibus: {slot: 1}}}",
		"a platform that is no map":   two + "platforms: {npu: 1}",
		"a stage of an overlay":       "base_config: x\nstages: [{omnibus: {replicas: 1}}]",
		"an empty base":               "base_config: ''\n" + two,
		"a setting of a connector":    "connectors: {c: {name: SharedMemoryConnector, extra: {shm_threshold_bytes: x}}}\n" + two,
		"a connector without a type":  "connectors: {c: {extra: {}}}\n" + two,
		"one of a stage without it":   "stages: [{stage_id: 0, input_connectors: {from_stage_1: {extra: {}}}}]",
		"one under runtime without":   "runtime: {connectors: {c: {extra: {}}}}\n" + two,
		"a text that is no variable":  "stages: [{stage_id: 0, omnibus: {replicas: $N}}]",
		"an inflight of one's models": "stages: [{stage_id: 0, runtime: {max_inflight: 0}}]",
	} {
		t.Run(name, func(t *testing.T) {
			if ok, err := asEditor(t, s, []byte(text)); err == nil || !ok {
				t.Errorf("accepted:\n%s", text)
			}
		})
	}
}

// What an editor shows about a key is in the schema.
func TestSchemaDescribesKeys(t *testing.T) {
	var d draft
	c := &reading{checker: new(checker)}
	for name, table := range map[string]fields{
		"omnibus": c.busFields(&Pipeline{}), "omnibus of a stage": c.stageOmnibusFields(&d), "batch": c.batchFields(&Batch{}),
		"edge": c.edgeFields(&listed{}), "omnibus of an edge": c.edgeOmnibusFields(&listed{}), "connector": c.connectorFields(&connectorParts{}),
	} {
		for key, field := range table {
			if text, _ := field.takes["description"].(string); !strings.HasSuffix(text, ".") {
				t.Errorf("%s: %s has the description %q", name, key, text)
			}
		}
	}
}

// Editors read the schema of a file from its first lines.
func TestExamplesNameTheSchema(t *testing.T) {
	files, err := filepath.Glob("../examples/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	want, err := filepath.Abs(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		path, ok := strings.CutPrefix(first, "# yaml-language-server: $schema=")
		got, err := filepath.Abs(filepath.Join(filepath.Dir(file), filepath.FromSlash(path)))
		if !ok || err != nil || got != want {
			t.Errorf("%s begins with %q, which does not lead to %s", file, first, schemaFile)
		}
	}
}

// The settings of the bus are on the page for users, and in the package comment.
func TestSettingsAreDocumented(t *testing.T) {
	page, comment := readText(t, "../docs/running.md"), readText(t, "doc.go")
	c := &reading{checker: new(checker)}
	for place, table := range map[string]fields{
		"omnibus": c.busFields(&Pipeline{}), "stage": c.stageOmnibusFields(&draft{}), "edge": c.edgeOmnibusFields(&listed{}),
	} {
		_, list, _ := strings.Cut(comment, "//\t"+place+":")
		list, _, _ = strings.Cut(list, "}\n//\t")
		list, _, _ = strings.Cut(list, "}\n//\n")
		for _, key := range table.keys() {
			if !regexp.MustCompile(`(?m)^\| .*` + "`" + key + "[`:].* \\|").MatchString(page) {
				t.Errorf("no table of docs/running.md has %s, of %s", key, place)
			}
			if !regexp.MustCompile(`\b` + key + `\b`).MatchString(list) {
				t.Errorf("the list of %s in doc.go has no %s", place, key)
			}
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
