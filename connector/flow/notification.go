package flow

import (
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// generate is the only kind of notification that there is.
const generate = "generate"

// A Notification tells a stage of a value. It is small, and travels over any
// queue, in MessagePack or JSON.
type Notification struct {
	Type           string             `msgpack:"type" json:"type"`
	RequestID      string             `msgpack:"request_id" json:"request_id"`
	SamplingParams any                `msgpack:"sampling_params" json:"sampling_params"`
	FromConnector  bool               `msgpack:"from_connector" json:"from_connector"`
	FromStage      string             `msgpack:"from_stage" json:"from_stage"`
	ToStage        string             `msgpack:"to_stage" json:"to_stage"`
	SentTS         float64            `msgpack:"sent_ts" json:"sent_ts"` // seconds of Unix time
	Metadata       connector.Metadata `msgpack:"connector_metadata,omitempty" json:"connector_metadata,omitempty"`
}

func (n *Notification) edge() connector.Edge {
	return connector.Edge{From: n.FromStage, To: n.ToStage}
}

// A Message is a value in the shape that the stages of vLLM-Omni expect. Bus
// users send what they like.
type Message struct {
	EngineInputs   any             `msgpack:"engine_inputs" json:"engine_inputs"`
	SamplingParams any             `msgpack:"sampling_params" json:"sampling_params"`
	Metadata       MessageMetadata `msgpack:"metadata" json:"metadata"`
}

// MessageMetadata is for people who look at a message.
type MessageMetadata struct {
	OriginalPrompt  any     `msgpack:"original_prompt" json:"original_prompt"`
	StageTransition string  `msgpack:"stage_transition" json:"stage_transition"` // "0->1"
	Timestamp       float64 `msgpack:"timestamp" json:"timestamp"`               // seconds of Unix time
}

// NewMessage wraps the inputs of the next stage.
func NewMessage(edge connector.Edge, inputs, samplingParams, prompt any) Message {
	return Message{
		EngineInputs:   inputs,
		SamplingParams: samplingParams,
		Metadata: MessageMetadata{
			OriginalPrompt:  prompt,
			StageTransition: edge.From + "->" + edge.To,
			Timestamp:       unixSeconds(time.Now()),
		},
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
