package config_test

import (
	"fmt"
	"os"

	"github.com/omnibus-runtime/omnibus/config"
)

func ExampleParse() {
	p, err := config.Parse("speech.yaml", []byte(`
stages:
  - {stage_id: 0, model_stage: thinker}
  - {stage_id: 1, model_stage: talker, engine_input_source: [0], omnibus: {replicas: 2}}
edges:
  - {from: 0, to: 1, window_size: 16}
`), config.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = p.WriteText(os.Stdout)
	// Output:
	// speech: 2 stages, 1 edge
	//
	// depth 0
	//   0 (thinker)
	//     └─▶ 1  SharedMemoryConnector (automatic)  window 16
	//
	// depth 1
	//   1 (talker)  from 0, 2 replicas
}

func ExampleOptions() {
	p, err := config.Parse("speech.yaml", []byte(`
stages:
  - stage_id: talker
    omnibus: {exec: ["${PYTHON}", talker.py], replicas: 2}
platforms:
  npu:
    stages:
      - {stage_id: talker, omnibus: {replicas: 4}}
`), config.Options{
		Platform:  "npu",
		LookupEnv: func(name string) (string, bool) { return "/usr/bin/python3", name == "PYTHON" },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Stages[0].Replicas, p.Stages[0].Exec)
	// Output: 4 [/usr/bin/python3 talker.py]
}

func ExampleProblems() {
	_, err := config.Parse("speech.yaml", []byte(`
stages:
  - stage_id: 0
    omnibus: {replica: 2}
  - stage_id: 1
    engine_input_source: [2]
`), config.Options{})
	fmt.Println(err)
	// Output:
	// speech.yaml:4:15: unknown key "replica" in the stage's omnibus settings: the nearest is "replicas" (all: alone, attach, attempts, batch, cwd, env, exec, first_timeout, grace, handle_timeout, handler, join, max_inflight, max_restarts, replay, replicas, restart, routing, start_timeout, state, unordered)
	// speech.yaml:6:27: unknown stage 2: the file has 0, 1
}
