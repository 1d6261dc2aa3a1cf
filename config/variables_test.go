package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// env looks up variables in a map.
func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	}
}

var someVars = env(map[string]string{
	"HOME": "/home/me", "EMPTY": "", "N": "3", "HALF": "0.5", "YES": "true", "WORD": "many", "_x9": "low",
	"SELF": "${SELF}", "NO": "no", "BYTES": "a\xff", "NUL": "a\x00",
})

func TestVariablesInTexts(t *testing.T) {
	tests := []struct{ name, written, want string }{
		{"alone", "${HOME}", "/home/me"},
		{"inside", "a ${HOME}/x:${HOME} b", "a /home/me/x:/home/me b"},
		{"set to nothing", "<${EMPTY}>", "<>"},
		{"any name", "${_x9}", "low"},
		{"as vLLM-Omni's loader has it", "${oc.env:HOME}/x", "/home/me/x"},
		{"a default that is not needed", "${oc.env:HOME,/root}", "/home/me"},
		{"a default", "${oc.env:UNSET, a b:1/2 }", "a b:1/2"},
		{"a default in quotes", `${oc.env:UNSET,'a, {b}'}-${oc.env:UNSET, "'c'"}`, "a, {b}-'c'"},
		{"no text as default", "<${oc.env:UNSET,}>", "<>"},
		{"a variable that is empty has no need of a default", "<${oc.env:EMPTY,x}>", "<>"},
		{"kept", `\${HOME} ${HOME}`, "${HOME} /home/me"},
		{"a backslash before a variable", `C:\\${N}`, `C:\3`},
		{"a backslash, and kept", `\\\${N}`, `\${N}`},
		{"backslashes elsewhere", `\a\\ $ \$ {`, `\a\\ $ \$ {`},
		{"dollars of a shell", "$HOME $1 $(pwd) $$", "$HOME $1 $(pwd) $$"},
		{"replaced once", "${SELF}", "${SELF}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			quoted := "'" + strings.ReplaceAll(tt.written, "'", "''") + "'"
			p, err := Parse("p.yaml", []byte("stages: [{stage_id: 0, k: "+quoted+", omnibus: {exec: ["+quoted+", x]}}]"), Options{LookupEnv: someVars})
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Stages[0].Exec[0]; got != tt.want {
				t.Errorf("exec has %q, want %q", got, tt.want)
			}
			if got, _ := p.Stages[0].Settings.Get("k"); got != tt.want {
				t.Errorf("the setting is %q, want %q", got, tt.want)
			}
		})
	}
}

// Variables count wherever a value may stand, and are text only where no number
// is wanted.
func TestVariablesEverywhere(t *testing.T) {
	const text = `
connectors:
  c: {name: "${TYPE}", extra: {shm_threshold_bytes: "${N}", codec_streaming: "${YES}", codec_chunk_frames: [1, "${N}"], connector_get_sleep_s: "${HALF}", note: "${N}", "${N}": x}}
stages:
  - {stage_id: "${N}", omnibus: {replicas: "${N}", replay: "${YES}", exec: ["${WORD}"], env: {A: "${N}"}, grace: "${N}s", routing: sticky}}
  - {stage_id: 4, input_connectors: {from_stage_3: c}, final_output: "${YES}", "${N}": same}
edges: [{from: "${N}", to: 4, window_size: "${N}", omnibus: {window_bytes: "${N}KiB", policy: fail}}]
omnibus: {name: "p-${N}", allow_uids: ["${N}"], ring_bytes: "${N}"}
plain: ${WORD}
folded: >-
  a
  ${N}
`
	p, err := Parse("p.yaml", []byte(text), Options{LookupEnv: env(map[string]string{
		"TYPE": SharedMemory, "N": "3", "HALF": "0.5", "YES": "true", "WORD": "no",
	})})
	if err != nil {
		t.Fatal(err)
	}
	want := mustParse(t, `
connectors:
  c: {name: SharedMemoryConnector, extra: {shm_threshold_bytes: 3, codec_streaming: true, codec_chunk_frames: [1, 3], connector_get_sleep_s: 0.5, note: "3", "${N}": x}}
stages:
  - {stage_id: 3, omnibus: {replicas: 3, replay: true, exec: ["no"], env: {A: "3"}, grace: 3s, routing: sticky}}
  - {stage_id: 4, input_connectors: {from_stage_3: c}, final_output: true, "${N}": same}
edges: [{from: 3, to: 4, window_size: 3, omnibus: {window_bytes: 3KiB, policy: fail}}]
omnibus: {name: p-3, allow_uids: [3], ring_bytes: 3}
plain: "no"
folded: a 3
`)
	if diff := cmp.Diff(want, p, content); diff != "" {
		t.Errorf("(-written out +with variables):\n%s", diff)
	}
	if len(p.Notes) > 0 {
		t.Errorf("notes on what variables hold: %v", p.Notes)
	}
}

func TestVariableProblems(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"not set", "stages:\n- stage_id: 0\n  k: a ${MISSING}", []string{
			`3:6: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`,
		}},
		{"not set, in JSON", "{\"stages\": [{\"stage_id\": 0,\n \"k\": \"${MISSING}\"}]}", []string{
			`2:7: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`,
		}},
		{"one problem a value, and the others all the same", "stages:\n- stage_id: 0\n  omnibus: {replicas: '${MISSING}', grace: '${MISSING}', slots: 1}\n- stage_id: '${MISSING}'\nedges: [{from: '${MISSING}', to: 0}]", []string{
			`3:23: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`,
			`3:44: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`,
			`3:58: unknown key "slots" in the stage's omnibus settings: the nearest is "alone" (all: alone, attach, attempts, batch, cwd, env, exec, first_timeout, grace, handle_timeout, handler, join, max_inflight, max_restarts, replay, replicas, restart, routing, start_timeout, state, unordered)`,
			`4:13: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`,
			`5:16: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`,
		}},
		{"an alias is one text", "k: &k ${MISSING}\nl: *k\nstages: [{stage_id: 0}]", []string{
			`1:7: the variable MISSING is not set: set it, or write ${oc.env:MISSING,default}, or \${ where the text is to have ${ itself`,
		}},
		{"not what is wanted", "stages:\n- stage_id: 0\n  omnibus: {replicas: '${WORD}', replay: '${N}', attempts: '${HALF}', grace: '${N}'}", []string{
			`3:23: replicas must be a whole number from 1 to 4096, not the text "many", made with variables`,
			`3:42: replay must be true or false, not the text "3", made with variables`,
			`3:60: attempts must be a whole number from 1 to 2147483647, not the text "0.5", made with variables`,
			`3:78: grace must be a positive duration such as "30s" or "500ms", not the text "3", made with variables`,
		}},
		{"not what is wanted by a connector", "connectors: {c: {name: SharedMemoryConnector, extra: {codec_chunk_frames: '${WORD}'}}}\nstages: [{stage_id: 0}]", []string{
			`1:75: codec_chunk_frames of SharedMemoryConnector must be a whole number of at least 0, or a list of them, not the text "many", made with variables`,
		}},
		{"numbers in quotes stay text", "stages: [{stage_id: 0, max_inflight: '3'}]", []string{
			`1:38: max_inflight must be a whole number from 1 to 4096, not the text "3"`,
		}},
		{"no text", two + "k: [\"${BYTES}\", \"${NUL}\"]", []string{
			"2:5: the value of the variable BYTES is no text: it has bytes that are not UTF-8, or a NUL",
			"2:17: the value of the variable NUL is no text: it has bytes that are not UTF-8, or a NUL",
		}},
		{"a default of null", two + "k: ${oc.env:MISSING, null}", []string{
			"2:4: the default of the variable MISSING is null, which cannot stand in a text: set the variable, or write a text",
		}},
		{"no variables", two + strings.Join([]string{
			"k: ['${}'", "'${N'", "'${9}'", "'${a.b}'", "'${N:-x}'", "'${N,x}'", "'${env:N}'", "'${oc.env:N,${N}}'", "'${oc.env:N,a,b}'", "'${ N}']",
		}, ",\n"), []string{
			`2:5: "${}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`3:1: "${N" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`4:1: "${9}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`5:1: "${a.b}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`6:1: "${N:-x}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`7:1: "${N,x}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`8:1: "${env:N}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`9:1: "${oc.env:N,${N}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`10:1: "${oc.env:N,a,b}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
			`11:1: "${ N}" stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`,
		}},
	}
	unset := Options{LookupEnv: someVars, NoteUnset: true}
	text := "stages: [{stage_id: 0, k: 'a ${MISSING}'}]\nconnectors: {c: {name: MooncakeTransferEngineConnector, extra: {zmq_port: '${MISSING}'}}}"
	p, err := Parse("p.yaml", []byte(text), unset)
	if err != nil || len(p.Notes) != 3 || !strings.Contains(p.Notes[0].String(), "the variable MISSING is not set here: a run needs it") {
		t.Errorf("with variables that need not be set: notes %v, error %v", p.Notes, err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := problemsWith(t, "p.yaml", tt.text, Options{LookupEnv: someVars})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithoutVariables(t *testing.T) {
	got := problemsOf(t, "p.yaml", two+"k: ${HOME}")
	if want := `2:4: the variable HOME is not set, because this program reads the file without any: write what it stands for, or \${ where the text is to have ${ itself`; got[0] != want || len(got) != 1 {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, _ := mustParse(t, two+"k: ${oc.env:HOME,none}").Settings.Get("k"); got != "none" {
		t.Errorf("the default gave %q", got)
	}
}

func TestExpandedTextIsBounded(t *testing.T) {
	const length = 1 << 12
	long := Options{LookupEnv: func(string) (string, bool) { return strings.Repeat("x", length), true }}
	many := func(n int) string {
		return two + "k: [" + strings.Repeat("'${A}', ", n) + "]\nl: '" + strings.Repeat("${A}", n) + "'"
	}
	if _, err := Parse("p.yaml", []byte(many(maxExpandedBytes/length/2)), long); err != nil {
		t.Errorf("at the bound: %v", err)
	}
	got := problemsWith(t, "p.yaml", many(maxExpandedBytes/length/2+1), long)
	if want := fmt.Sprintf("3:4: more than %d bytes of text once variables are replaced", maxExpandedBytes); len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
