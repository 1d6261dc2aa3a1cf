package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// files opens files from a map.
func files(texts map[string]string) func(string) (io.ReadCloser, error) {
	return func(path string) (io.ReadCloser, error) {
		text, ok := texts[filepath.ToSlash(path)]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}
}

// A base and what is laid over it make the same pipeline as one file.
func TestFilesOverEachOther(t *testing.T) {
	tests := []struct{ name, base, top, want string }{
		{
			name: "a file that adds nothing",
			base: two,
			top:  "# nothing\nbase_config: b.yaml",
			want: two,
		},
		{
			name: "a top key replaces, maps of the models too",
			base: two + "a: 1\nb: {x: 1, y: 2}\nc: [1]",
			top:  "base_config: b.yaml\na: 2\nb: {y: 3}\nc: null\nd: 4",
			want: two + "a: 2\nb: {y: 3}\nc: null\nd: 4",
		},
		{
			name: "stages by their ids, whether number or text",
			base: "stages: [{stage_id: 0, a: 1, b: 1}, {stage_id: 1, a: 1}]",
			top:  "base_config: b.yaml\nstages: [{stage_id: 2, a: 3}, {stage_id: '1', a: 2, b: 2}]",
			want: "stages: [{stage_id: 0, a: 1, b: 1}, {stage_id: 1, a: 2, b: 2}, {stage_id: 2, a: 3}]",
		},
		{
			name: "in a stage, the maps that vLLM-Omni merges, and no others",
			base: "stages: [{stage_id: 0, default_sampling_params: {x: 1, y: {u: 1, v: 2}}, engine_args: {a: {b: 1}}, hf_overrides: {x: 1}, env: {A: a}}]",
			top:  "base_config: b.yaml\nstages: [{stage_id: 0, default_sampling_params: {y: {v: 3}, z: 4}, engine_args: {a: 7}, hf_overrides: {y: 2}, env: {B: b}}]",
			want: "stages: [{stage_id: 0, default_sampling_params: {x: 1, y: {u: 1, v: 3}, z: 4}, engine_args: {a: 7}, hf_overrides: {y: 2}, env: {B: b}}]",
		},
		{
			name: "settings of the bus, and a null takes one away",
			base: "omnibus: {slots: 8, memory: heap}\nstages: [{stage_id: 0, omnibus: {exec: [x, y], env: {A: a, B: b}, batch: {size: 2, wait: 1s}}}]",
			top:  "base_config: b.yaml\nomnibus: {memory: null, ring_bytes: 1KiB}\nstages: [{stage_id: 0, omnibus: {exec: [z], env: {A: c}, batch: {wait: null}}}]",
			want: "omnibus: {slots: 8, ring_bytes: 1KiB}\nstages: [{stage_id: 0, omnibus: {exec: [z], env: {A: c, B: b}, batch: {size: 2}}}]",
		},
		{
			name: "connectors at every level, edges as a whole",
			base: "connectors: {c: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 1, codec_streaming: true}}}\n" + abc + "edges: [{from: a, to: b, window_size: 2}, {from: b, to: c}]",
			top:  "base_config: b.yaml\nconnectors: {c: {extra: {codec_chunk_frames: 2}}, d: {name: SharedMemoryConnector}}\nedges: [{from: a, to: c}]\nstages: [{stage_id: b, input_connectors: {from_stage_a: c}}]",
			want: "connectors: {c: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 2, codec_streaming: true}}, d: {name: SharedMemoryConnector}}\n" +
				"stages: [{stage_id: a}, {stage_id: b, input_connectors: {from_stage_a: c}}, {stage_id: c}]\nedges: [{from: a, to: c}]",
		},
		{
			name: "the older shape",
			base: "stage_args: [{stage_id: a}, {stage_id: b}]\nruntime: {defaults: {window_size: 1, max_inflight: 2}, edges: [{from: a, to: b}]}",
			top:  "base_config: b.yaml\nruntime: {defaults: {max_inflight: 3}}\nstage_args: [{stage_id: a, max_inflight: 1}]",
			want: "stage_args: [{stage_id: a, max_inflight: 1}, {stage_id: b}]\nruntime: {defaults: {window_size: 1, max_inflight: 3}, edges: [{from: a, to: b}]}",
		},
		{
			name: "sections of null leave what is below",
			base: "connectors: {c: {name: SharedMemoryConnector}}\nruntime: {defaults: {window_size: 1}}\n" + two,
			top:  "base_config: b.yaml\nconnectors:\nstages:\nruntime:\n",
			want: "connectors: {c: {name: SharedMemoryConnector}}\nruntime: {defaults: {window_size: 1}}\n" + two,
		},
		{
			name: "a value that both kinds of file share by an alias",
			base: "x: &x {batch: {size: 2}}\nstages: [{stage_id: 0, omnibus: *x}, {stage_id: 1, omnibus: *x}]",
			top:  "base_config: b.yaml\nstages: [{stage_id: 1, omnibus: {batch: {size: 3}}}]",
			want: "x: {batch: {size: 2}}\nstages: [{stage_id: 0, omnibus: {batch: {size: 2}}}, {stage_id: 1, omnibus: {batch: {size: 3}}}]",
		},
		{
			name: "variables, of which those that do not count need not be set",
			base: "stages: [{stage_id: '${N}', k: '${HOME}', l: '${MISSING}'}]",
			top:  "base_config: '${B}.yaml'\nstages: [{stage_id: 3, l: '${WORD}'}]",
			want: "stages: [{stage_id: 3, k: /home/me, l: many}]",
		},
		{
			name: "a null for a base",
			base: "-",
			top:  "base_config:\n" + two,
			want: two,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lookup := func(name string) (string, bool) {
				if name == "B" {
					return "b", true
				}
				return someVars(name)
			}
			p, err := Parse("p.yaml", []byte(tt.top), Options{LookupEnv: lookup, Open: files(map[string]string{"b.yaml": tt.base})})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(mustParse(t, tt.want), p, content); diff != "" {
				t.Errorf("(-one file +two files):\n%s", diff)
			}
		})
	}
}

// abc is a list of three stages.
const abc = "stages: [{stage_id: a}, {stage_id: b}, {stage_id: c}]\n"

func TestPlatforms(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{
			name: "none",
			text: "platforms: {npu: {stages: [{stage_id: 0, a: 2}]}}\nstages: [{stage_id: 0, a: 1}]",
			want: "stages: [{stage_id: 0, a: 1}]",
		},
		{
			name: "npu",
			text: "platforms: {npu: {model_runner: v1, stages: [{stage_id: 1, a: 2, b: [2]}]}, xpu: {stages: [{stage_id: 1, a: 3}]}}\nmodel_runner: v2\nstages: [{stage_id: 0, a: 1}, {stage_id: 1, a: 1, c: 1}]",
			want: "model_runner: v1\nstages: [{stage_id: 0, a: 1}, {stage_id: 1, a: 2, c: 1, b: [2]}]",
		},
		{
			name: "npu, which changes nothing",
			text: "platforms: {npu: }\nstages: [{stage_id: 0, a: 1}]",
			want: "stages: [{stage_id: 0, a: 1}]",
		},
		{
			name: "npu, and the maps of a stage that vLLM-Omni merges for a platform",
			text: "platforms: {npu: {stages: [{stage_id: 0, default_sampling_params: {y: {v: 3}}, env: {B: b}, runtime: {devices: '1', env: {D: d}}, hf_overrides: {y: 2}}]}}\n" +
				"stages: [{stage_id: 0, default_sampling_params: {x: 1, y: {u: 1}}, env: {A: a}, runtime: {process: true, devices: '0', env: {C: c}}, hf_overrides: {x: 1}}]",
			want: "stages: [{stage_id: 0, default_sampling_params: {x: 1, y: {v: 3}}, env: {A: a, B: b}, runtime: {process: true, devices: '1', env: {C: c, D: d}}, hf_overrides: {y: 2}}]",
		},
		{
			name: "npu, with settings of the bus and of connectors",
			text: "platforms: {npu: {omnibus: {slots: 9}, connectors: {c: {extra: {codec_chunk_frames: 2}}}, stages: [{stage_id: 0, omnibus: {exec: null, attach: true}}]}}\n" +
				"omnibus: {slots: 8, name: n}\nconnectors: {c: {name: SharedMemoryConnector}}\nstages: [{stage_id: 0, omnibus: {exec: [x], replicas: 2}}]",
			want: "omnibus: {slots: 9, name: n}\nconnectors: {c: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 2}}}\nstages: [{stage_id: 0, omnibus: {replicas: 2, attach: true}}]",
		},
		{
			name: "npu, and what other platforms name need not be set",
			text: "platforms: {npu: {stages: [{stage_id: 0, a: '${N}'}]}, xpu: {stages: [{stage_id: 0, a: '${MISSING}'}]}}\nstages: [{stage_id: 0, a: '${MISSING}'}]",
			want: "stages: [{stage_id: 0, a: '3'}]",
		},
		{
			name: "npu, of a base",
			text: "base_config: b.yaml\nplatforms: {npu: {stages: [{stage_id: 0, b: 5}]}, xpu: {}}\nstages: [{stage_id: 0, c: 1}]",
			want: "stages: [{stage_id: 0, a: 4, b: 5, c: 6}]",
		},
	}
	const base = "platforms: {npu: {stages: [{stage_id: 0, a: 4, b: 4, c: 6}]}, musa: null}\nstages: [{stage_id: 0, a: 1, b: 1}]"
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			name, _, _ := strings.Cut(tt.name, ",")
			if name == "none" {
				name = ""
			}
			p, err := Parse("p.yaml", []byte(tt.text), Options{LookupEnv: someVars, Platform: name, Open: files(map[string]string{"b.yaml": base})})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(mustParse(t, tt.want), p, content); diff != "" {
				t.Errorf("(-written out +chosen):\n%s", diff)
			}
		})
	}
}

func TestPlatformProblems(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"unknown", "stages: [{stage_id: 0}]\nplatforms: {xpu: {}, musa: {}}", []string{`2:1: there is no platform "npu": the file has xpu, musa`}},
		{"of none", "stages: [{stage_id: 0}]\nplatforms: {}", []string{`2:1: there is no platform "npu": platforms is empty`}},
		{"without any", "stages: [{stage_id: 0}]", []string{`1:1: there is no platform "npu": the file has no platforms`}},
		{"no map", "platforms: [npu]\nstages: [{stage_id: 0}]", []string{"1:12: platforms must be a map of keys, not a list"}},
		{"no map inside", "platforms:\n  npu: [1]\nstages: [{stage_id: 0}]", []string{"2:8: the platform npu must be a map of keys, not a list"}},
		{"a stage of its own", "stages: [{stage_id: 0}]\nplatforms:\n  npu:\n    stages: [{stage_id: 7, a: 1}, {stage_id: 0}, {stage_id: 0}]", []string{
			"4:25: the platform changes the stage 7, which the file does not have, or changes it twice",
			"4:61: the platform changes the stage 0, which the file does not have, or changes it twice",
		}},
		{"a stage without an id", "stages: [{stage_id: 0}]\nplatforms:\n  npu:\n    stages: [{a: 1}]", []string{"4:14: the stage has no stage_id"}},
		{"what it changes is checked where it stands", "stages: [{stage_id: 0}]\nplatforms:\n  npu:\n    omnibus: {slot: 1}\n    stages: [{stage_id: 0, omnibus: {replicas: 0}}]", []string{
			`4:15: unknown key "slot" in the omnibus settings: the nearest is "slots" (all: allow_uids, exchange_ttl, grace, http, inline_bytes, large_bytes, main, max_requests, memory, name, ring_bytes, serializer, slots, socket, stall_timeout, wait)`,
			"5:48: replicas must be a whole number from 1 to 4096, not the number 0",
		}},
		{"platforms of a platform", "stages: [{stage_id: 0}]\nplatforms:\n  npu:\n    platforms: {}", []string{"4:5: platforms stands at the top of a file, not in a platform"}},
		{"a base of a platform", "stages: [{stage_id: 0}]\nplatforms:\n  npu:\n    base_config: x", []string{"4:5: base_config stands at the top of a file, not in a platform"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := problemsWith(t, "p.yaml", tt.text, Options{Platform: "npu"})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A problem names the file that it stands in; those of the file that was named
// come first.
func TestBaseProblems(t *testing.T) {
	chain := make(map[string]string)
	for i := range maxFiles + 1 {
		chain[fmt.Sprintf("dir/%d.yaml", i)] = fmt.Sprintf("base_config: %d.yaml\n", i+1) + two
	}
	half := "[" + strings.Repeat("1,", MaxValues/2) + "]"
	tests := []struct {
		name  string
		files map[string]string // by base; the first is dir/0.yaml
		want  []string
	}{
		{
			name:  "no such file",
			files: map[string]string{"dir/0.yaml": "base_config: ../b.yaml"},
			want:  []string{"dir/0.yaml:1:14: base_config: b.yaml cannot be read: file does not exist"},
		},
		{
			name:  "no path",
			files: map[string]string{"dir/0.yaml": two + "base_config: [b.yaml]"},
			want:  []string{"dir/0.yaml:2:14: base_config must be the path of a file, relative to the folder of this one, not a list"},
		},
		{
			name:  "an empty path",
			files: map[string]string{"dir/0.yaml": two + "base_config: ''"},
			want:  []string{`dir/0.yaml:2:14: base_config must be the path of a file, relative to the folder of this one, not the text ""`},
		},
		{
			name:  "a path with a variable that is not set",
			files: map[string]string{"dir/0.yaml": two + "base_config: ${MISSING}.yaml"},
			want:  []string{`dir/0.yaml:2:14: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`},
		},
		{
			name:  "itself",
			files: map[string]string{"dir/0.yaml": "base_config: ../dir/./0.yaml"},
			want:  []string{"dir/0.yaml:1:14: a file cannot stand on itself: dir/0.yaml -> dir/0.yaml"},
		},
		{
			name:  "a cycle, reported where it closes",
			files: map[string]string{"dir/0.yaml": "base_config: a.yaml", "dir/a.yaml": "base_config: x/b.yaml", "dir/x/b.yaml": two + "base_config: ../a.yaml"},
			want:  []string{"dir/x/b.yaml:2:14: a file cannot stand on itself: dir/a.yaml -> dir/x/b.yaml -> dir/a.yaml"},
		},
		{
			name:  "too long a chain",
			files: chain,
			want:  []string{"dir/15.yaml:1:14: more than 16 files stand on each other by base_config: merge some into one"},
		},
		{
			name:  "a base that is not YAML",
			files: map[string]string{"dir/0.yaml": "base_config: b.yaml", "dir/b.yaml": "a: 1\n\tb: 2"},
			want:  []string{"dir/b.yaml:2:1: not YAML: found character '\t' that cannot start any token"},
		},
		{
			name:  "a base that is not JSON",
			files: map[string]string{"dir/0.yaml": "base_config: b.json", "dir/b.json": "a: 1"},
			want:  []string{"dir/b.json:1:1: not JSON: invalid character 'a' looking for beginning of value"},
		},
		{
			name:  "a base that is no map",
			files: map[string]string{"dir/0.yaml": "base_config: b.yaml", "dir/b.yaml": "[1]"},
			want:  []string{"dir/b.yaml:1:1: a pipeline file must be a map of keys, not a list"},
		},
		{
			name:  "a tag in a base",
			files: map[string]string{"dir/0.yaml": "base_config: b.yaml", "dir/b.yaml": two + "k: !x 1"},
			want:  []string{"dir/b.yaml:2:4: the tag !x: tags are not supported, write the value without it"},
		},
		{
			name: "values of both together",
			files: map[string]string{
				"dir/0.yaml": "base_config: b.yaml\nk: " + half, "dir/b.yaml": two + "\nk: " + half,
			},
			want: []string{"dir/b.yaml:3:65521: more than 65536 values once aliases are expanded"},
		},
		{
			name: "each where it stands",
			files: map[string]string{
				"dir/0.yaml": "base_config: b.yaml\nstages:\n- stage_id: 1\n  final_output: 1\n- stage_id: 2\n  omnibus: {x: 1}\n  engine_input_source: [7]",
				"dir/b.yaml": "stages:\n- stage_id: 0\n  max_inflight: 0\n- stage_id: 1\n  final_output: 2\n  k: ${MISSING}\nconnectors: {c: {name: X}}",
			},
			want: []string{
				"dir/0.yaml:4:17: final_output must be true or false, not the number 1",
				`dir/0.yaml:6:13: unknown key "x" in the stage's omnibus settings: the nearest is "cwd" (all: alone, attach, attempts, batch, cwd, env, exec, first_timeout, grace, handle_timeout, handler, join, max_inflight, max_restarts, replay, replicas, restart, routing, start_timeout, state, unordered)`,
				"dir/0.yaml:7:25: unknown stage 7: the file has 0, 1, 2",
				"dir/b.yaml:3:17: max_inflight must be a whole number from 1 to 4096, not the number 0",
				`dir/b.yaml:6:6: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`,
				`dir/b.yaml:7:24: unknown connector type "X": the nearest is NixlConnector`,
			},
		},
		{
			name: "what contradicts another file says which",
			files: map[string]string{
				"dir/0.yaml": "base_config: b.yaml\nstages: [{stage_id: 2}, {stage_id: 1, input_connectors: {from_stage_0: {name: MoriConnector}}}, {stage_id: 2}]\nedges: []",
				"dir/b.yaml": "stages:\n- {stage_id: 0, output_connectors: {to_stage_1: {name: NixlConnector}}}\n- stage_id: 1\nruntime: {edges: []}",
			},
			want: []string{
				"dir/0.yaml:2:108: the stage 2 is defined twice, first on line 2",
				"dir/0.yaml:3:1: edges stands both at the top and under runtime: keep one of them",
				"dir/b.yaml:2:37: the ends of the edge 0 -> 1 disagree: stage 0 sends through NixlConnector (line 2), stage 1 receives through MoriConnector (line 2 of the file on top)",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load("dir/0.yaml", Options{Open: files(tt.files), LookupEnv: someVars})
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("%T instead of problems: %v", err, err)
			}
			var got []string
			for _, p := range problems {
				got = append(got, filepath.ToSlash(p.Error()))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPositionsInABase(t *testing.T) {
	p, err := Load("p.yaml", Options{Open: files(map[string]string{
		"p.yaml":   "base_config: x/b.yaml\nstages: [{stage_id: 0}]",
		"x/b.yaml": "stages:\n- stage_id: 0\n- stage_id: 1\n  engine_input_source: [0]\nconnectors: {c: {name: SharedMemoryConnector}}",
	})})
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.FromSlash("x/b.yaml")
	if got, want := p.Stages[0].Pos, (Position{Line: 2, Column: 21}); got != want {
		t.Errorf("the stage of both stands at %v, want %v", got, want)
	}
	if got, want := p.Stages[1].Pos, (Position{File: base, Line: 3, Column: 13}); got != want {
		t.Errorf("the stage of the base stands at %v, want %v", got, want)
	}
	if got, want := p.Notes[0].String(), base+`:5:14: note: no edge uses the connector "c"`; got != want {
		t.Errorf("note %q, want %q", got, want)
	}
	if _, _, err := p.Build(nil); err == nil || !strings.Contains(err.Error(), base+":3:13: stage 1: ") {
		t.Errorf("Build = %v, which does not name the base", err)
	}
}

func TestLoadReadsBases(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	root := write("shared/root.json", `{"stages": [{"stage_id": 0, "omnibus": {"cwd": "work"}}], "a": 1, "b": 1}`)
	write("shared/base.yaml", "base_config: "+root+"\nb: 2\nc: 2")
	top := write("mine/top.yaml", "base_config: ../shared/base.yaml\nc: 3")
	p, err := Load(top, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Settings{{"a", int64(1)}, {"b", int64(2)}, {"c", int64(3)}}, p.Settings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := p.Path(p.Stages[0].Cwd); err != nil || got != filepath.Join(dir, "mine", "work") {
		t.Errorf("Path = %q, %v: not in the folder of the file that was named", got, err)
	}

	// An os.Root keeps a file that is not trusted within a folder.
	folder, err := os.OpenRoot(filepath.Join(dir, "mine"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = folder.Close() }()
	_, err = Load("top.yaml", Options{Open: func(path string) (io.ReadCloser, error) { return folder.Open(path) }})
	if err == nil || !strings.HasPrefix(err.Error(), "top.yaml:1:14: base_config: ") {
		t.Errorf("a base outside the folder: %v", err)
	}
}
