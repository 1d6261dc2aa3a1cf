package config

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestJSONIsTheSamePipeline(t *testing.T) {
	yaml := mustLoad(t, "testdata/valid/diffusion.yaml")
	text := `{
	"stages": [
		{"stage_id": "decode", "final_output": true, "final_output_type": "image",
		 "input_connectors": {"from_stage_denoise": {"name": "SharedMemoryConnector", "extra": {"shm_threshold_bytes": 0}}}},
		{"stage_id": "denoise", "num_inference_steps": 50, "engine_input_source": ["encode_text", "encode_image"], "omnibus": {"join": true}},
		{"stage_id": "encode_text", "devices": "0"},
		{"stage_id": "encode_image", "devices": "1", "output_connectors": {"to_stage_denoise": "rdma"}},
		{"stage_id": "moderate", "engine_input_source": ["denoise"], "omnibus": {"attach": true}}
	],
	"connectors":	{"rdma": {"name": "MooncakeTransferEngineConnector", "extra": {"host": "auto", "zmq_port": "${PORT}", "memory_pool_size": 1073741824}}},
	"edges": [{"from": "denoise", "to": "moderate", "window_size": 1, "max_inflight": 2, "omnibus": {"policy": "drop-oldest"}}]
}`
	p, err := Parse("diffusion.json", []byte(text), somePort)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(yaml, p, content); diff != "" {
		t.Errorf("(-yaml +json):\n%s", diff)
	}
}

func TestJSONPositions(t *testing.T) {
	tests := []struct{ name, file, text, want string }{
		{"indented with tabs", "p.json", "{\n\t\"stages\": [\n\t\t{\"stage_id\":\t-1}\n\t]\n}", "3:16: stage_id must be"},
		{"no space after the colon", "p.json", `{"stages":[{"stage_id":-1}]}`, "1:24: stage_id must be"},
		{"JSON under another name", "p.yaml", "{\n\t\"stages\":\t[]}", "2:12: the pipeline has no stage"},
		{"after characters of several bytes", "p.json", `{"é😀": "ü", "stages": []}`, "1:23: the pipeline has no stage"},
		{"after escapes", "p.json", `{"a": "\u00e9\n\ud83d\ude00\/", "stages": []}`, "1:43: the pipeline has no stage"},
		{"repeated key", "p.json", "{\"stages\": [{\"stage_id\": 0}],\n \"stages\": []}", `2:2: the key "stages" is repeated`},
		{"trailing comma", "p.json", "{\n\t\"stages\": [],\n}", "3:1: not JSON: invalid character '}'"},
		{"cut off", "p.json", "{\n\"stages\": [", "2:11: not JSON: unexpected end of JSON input"},
		{"YAML in a JSON file", "p.json", "stages: []", "1:1: not JSON: invalid character 's'"},
		{"byte order mark", "p.json", "\ufeff{\"stages\": []}", "1:12: the pipeline has no stage"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := problemsOf(t, tt.file, tt.text)
			if !strings.HasPrefix(got[0], tt.want) {
				t.Errorf("got %q, want %q...", got[0], tt.want)
			}
		})
	}
}

// TestJSONValuesSurvive checks the settings of a stage, read through the YAML
// parser and written as JSON again, against encoding/json.
func TestJSONValuesSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := drawJSON(t, 3)
		text, err := json.MarshalIndent(map[string]any{"stages": []any{map[string]any{"stage_id": 0, "value": value}}},
			"", rapid.SampledFrom([]string{"", " ", "\t"}).Draw(t, "indent"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := Parse("p.json", text, Options{})
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		got, err := json.Marshal(p.Stages[0].Settings)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(normalJSON(t, map[string]any{"value": value}), normalJSON(t, json.RawMessage(got))); diff != "" {
			t.Fatalf("%s\n(-want +got):\n%s", text, diff)
		}
	})
}

func normalJSON(t *rapid.T, value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var normal any
	if err := json.Unmarshal(text, &normal); err != nil {
		t.Fatal(err)
	}
	return normal
}

func drawJSON(t *rapid.T, depth int) any {
	switch kinds := 6; rapid.IntRange(0, kinds+min(1, depth)*2-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.Int64().Draw(t, "int")
	case 3:
		// A whole number is written as an integer, which must fit in 64 bits.
		small := func(f float64) bool { return f != math.Trunc(f) || math.Abs(f) < 1<<53 }
		return rapid.Float64Range(-1e300, 1e300).Filter(small).Draw(t, "float")
	case 4:
		// A variable would be replaced.
		return rapid.String().Filter(func(s string) bool { return !strings.Contains(s, "${") }).Draw(t, "string")
	case 5:
		return rapid.SampledFrom([]string{"", " ", "~", "null", "true", "yes", "1", "1e-5", "- a", "a: b", "#", "&a", "*a", "!!str", "|", "'", `"`, `\`, "\n", "\t", "\u2028", "\u0085", "a\n\n b", "{", "---", "..."}).Draw(t, "tricky")
	case 6:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "len") {
			list = append(list, drawJSON(t, depth-1))
		}
		return list
	default:
		m := map[string]any{}
		for range rapid.IntRange(0, 3).Draw(t, "len") {
			m[rapid.StringN(0, 8, -1).Draw(t, "key")] = drawJSON(t, depth-1)
		}
		return m
	}
}
