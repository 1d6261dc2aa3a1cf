package wire_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// sample is a message of the vectors.
type sample struct {
	name        string
	descriptors int
	message     wire.Message
}

// samples returns the messages of testdata/vectors.json. Add new ones at the end of their part; a
// change of an existing one changes the protocol.
func samples() []sample {
	var all []sample
	all = append(all, openingSamples()...)
	all = append(all, servingSamples()...)
	all = append(all, emittingSamples()...)
	all = append(all, submittingSamples()...)
	all = append(all, sample{name: "bye", message: &wire.Bye{}})
	all = append(all, laneSamples()...)
	all = append(all, exchangeSamples()...)
	all = append(all, directorySamples()...)
	return all
}

func trace() wire.Trace {
	t := wire.Trace{Flags: 1, State: "vendor=value"}
	for i := range t.TraceID {
		t.TraceID[i] = byte(0xa0 + i)
	}
	for i := range t.SpanID {
		t.SpanID[i] = byte(0xb0 + i)
	}
	return t
}

// counting returns the bytes 0, 1, 2 and so on.
func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// mostAttrs returns MaxAttrs attributes.
func mostAttrs() map[string]string {
	attrs := map[string]string{}
	for i := range wire.MaxAttrs {
		attrs[fmt.Sprintf("attribute-%02d", i)] = strings.Repeat("v", i)
	}
	attrs["attribute-31"] = strings.Repeat("w", wire.MaxAttrValue)
	return attrs
}

func openingSamples() []sample {
	edges := []wire.Edge{
		{Name: "->thinker", Peer: "thinker", Window: 8, WindowBytes: 1 << 20, Policy: wire.PolicyBlock},
		{Name: "->talker", Peer: "talker", Policy: wire.PolicyFail},
	}
	return []sample{
		{name: "hello", message: &wire.Hello{VersionMin: 1, VersionMax: 2, PID: 4711, Bus: "speech", Name: "talker replica 0"}},
		{name: "hello-empty", message: &wire.Hello{VersionMin: 1, VersionMax: 1, PID: 1}},
		{name: "hello-extreme", message: &wire.Hello{VersionMin: 0, VersionMax: math.MaxUint16, PID: math.MaxUint32, Bus: strings.Repeat("ü", wire.MaxName/2), Name: strings.Repeat("n", wire.MaxName)}},
		{name: "welcome", message: &wire.Welcome{
			Version: 1, Node: 3, Epoch: 0x1122334455667788, InlineBytes: 32768, LargestMib: 20480, Bus: "speech", Inputs: edges,
			Results: []wire.Edge{{Name: "vocoder->", Peer: "vocoder", Window: math.MaxUint32, WindowBytes: math.MaxUint64, Policy: wire.PolicyDropOldest}},
		}},
		{name: "welcome-without-edges", message: &wire.Welcome{Version: 1, Node: 1, Epoch: 1}},
		{name: "refuse", message: &wire.Refuse{Code: wire.CodeVersion, Text: "the host speaks version 1, the client 2"}},
		{name: "failed", message: &wire.Failed{Token: 7, Code: wire.CodeTooLarge, Text: "größer als das Fenster"}},
		{name: "failed-code-without-a-name", message: &wire.Failed{Token: 7, Code: 999}},
		{name: "failed-longest-text", message: &wire.Failed{Token: math.MaxUint32, Code: wire.CodeInternal, Text: strings.Repeat("t", wire.MaxText)}},
		{name: "call", message: &wire.Call{Token: 1, Method: "abort", Arguments: []byte(`{"request": 18446744073709551615, "reason": "…"}`)}},
		{name: "call-without-arguments", message: &wire.Call{Token: 2, Method: "status"}},
		{name: "reply", message: &wire.Reply{Token: 1, Piece: []byte(`{"stages": []}`)}},
		{name: "reply-more", message: &wire.Reply{Token: 1, Flags: wire.ReplyMore, Piece: []byte(`{"stages": [`)}},
	}
}

func servingSamples() []sample {
	return []sample{
		{name: "serve", message: &wire.Serve{Token: 2, Stage: "talker"}},
		{name: "serve-ends", message: &wire.Serve{Token: 2, Stage: "talker", Flags: wire.ServeEnds}},
		{name: "serving", message: &wire.Serving{
			Token: 2, Stage: 1, Replica: 4, MaxInflight: 16, State: wire.StateNone, Join: true, Batch: 8,
			Inputs:  []wire.Edge{{Name: "thinker->talker", Peer: "thinker", Window: 4, WindowBytes: 1 << 24}},
			Outputs: []wire.Edge{{Name: "talker->vocoder", Peer: "vocoder", Policy: wire.PolicyDropOldest}, {Name: "talker->"}},
		}},
		{name: "serving-least", message: &wire.Serving{Token: 2}},
		{name: "open", message: &wire.Open{Task: 9, Stage: 1, Request: 0xfedcba9876543210, Attempt: 2, TimeLeft: 1500000001, Trace: trace()}},
		{name: "open-not-traced", message: &wire.Open{Task: 9, Stage: 1, Request: 1}},
		{name: "open-longest-state", message: &wire.Open{Task: 9, Stage: 1, Request: 1, TimeLeft: math.MaxInt64, Trace: wire.Trace{TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 1}, Flags: 255, State: strings.Repeat("s", wire.MaxTraceState)}}},
		{name: "deliver", message: &wire.Deliver{Source: 9, Delivery: 100, Edge: 1, Codec: 3, Attempt: 1, Seq: 5, Dropped: 2, Segment: 3, Offset: 1 << 40, Size: 1 << 33, Key: "chunk-5", Attrs: map[string]string{"rate": "24000", "lang": "日本語"}}},
		{name: "deliver-inline", message: &wire.Deliver{Source: 9, Delivery: 101, Flags: wire.FlagInline | wire.FlagMore, Codec: 1, Size: 5, Payload: []byte("hello")}},
		{name: "deliver-inline-empty", message: &wire.Deliver{Source: 9, Delivery: 102, Flags: wire.FlagInline, Codec: 2}},
		{name: "deliver-bare-last", message: &wire.Deliver{Source: 9, Delivery: 103, Flags: wire.FlagBare | wire.FlagLast, Seq: 6}},
		{name: "deliver-extreme", message: &wire.Deliver{
			Source: math.MaxUint32, Delivery: math.MaxUint32, Edge: math.MaxUint16, Flags: wire.FlagInline, Codec: math.MaxUint32, Attempt: math.MaxUint32,
			Seq: math.MaxUint64, Dropped: math.MaxUint64, Segment: math.MaxUint32, Offset: math.MaxUint64, Size: 300,
			Key: strings.Repeat("k", wire.MaxName), Attrs: mostAttrs(), Payload: counting(300),
		}},
		{name: "finish", message: &wire.Finish{Delivery: 100}},
		{name: "finish-keep", message: &wire.Finish{Delivery: 100, Flags: wire.FinishKeep}},
		{name: "finish-failed", message: &wire.Finish{Delivery: 100, Code: wire.CodeInvalid, Text: "the tensor has 3 dimensions, and the talker takes 2"}},
		{name: "release", message: &wire.Release{Delivery: 100}},
		{name: "end", message: &wire.End{Task: 9}},
		{name: "ended", message: &wire.Ended{Task: 9}},
		{name: "ended-failed", message: &wire.Ended{Task: 9, Code: wire.CodeInternal, Text: "no audio"}},
		{name: "over", message: &wire.Over{Source: 9, Outcome: wire.OutcomeFailed, Stage: "vocoder", Edge: "talker->vocoder", Key: "chunk-5", Seq: 5, Text: "out of memory"}},
		{name: "over-completed", message: &wire.Over{Source: 9, Outcome: wire.OutcomeCompleted}},
		{name: "over-past-its-deadline", message: &wire.Over{Source: 9, Outcome: wire.OutcomeDeadline, Seq: math.MaxUint64}},
		{name: "over-refused", message: &wire.Over{Source: wire.OwnSource | 10, Outcome: wire.OutcomeRefused, Code: uint32(wire.CodeOverloaded), Text: "no place"}},
		{name: "leave", message: &wire.Leave{}},
		{name: "drain", message: &wire.Drain{}},
		{name: "scoreboard", descriptors: 1, message: &wire.Scoreboard{}},
		{name: "segment", descriptors: 1, message: &wire.Segment{Segment: 3, Bytes: 1 << 30}},
		{name: "forget", message: &wire.Forget{Segment: 3}},
		{name: "ended-somewhere", message: &wire.Ended{Task: 9, Code: wire.CodeInternal, Text: "no audio", Edge: "thinker->talker", Key: "chunk-5", Seq: math.MaxUint64}},
		{name: "leave-of-stages", message: &wire.Leave{Stages: []uint32{0, math.MaxUint32}}},
		{name: "open-late", message: &wire.Open{Task: 9, Stage: 1, Request: 1, TimeLeft: math.MinInt64}},
		{name: "ended-late", message: &wire.Ended{Task: 9, Code: wire.CodeOver, Text: "2s after it began"}},
	}
}

func emittingSamples() []sample {
	return []sample{
		{name: "offer", descriptors: 1, message: &wire.Offer{Segment: 1, Bytes: 1 << 28}},
		{name: "put", message: &wire.Put{Put: 31, Source: 9, Delivery: 100, Edge: wire.AllEdges, Flags: wire.FlagLast, Codec: 3, Attempt: 1, Segment: 1, Offset: 8192, Size: 77, Key: "k", Attrs: map[string]string{"x": ""}}},
		{name: "put-inline", message: &wire.Put{Put: 32, Source: 9, Flags: wire.FlagInline, Codec: 1, Size: 3, Payload: []byte{0, 0xff, 0x80}}},
		{name: "returned", message: &wire.Returned{Puts: []uint32{31, 32, math.MaxUint32}}},
		{name: "returned-none", message: &wire.Returned{}},
		{name: "spent", message: &wire.Spent{Put: 31, Flags: wire.SpentBytes}},
	}
}

func submittingSamples() []sample {
	return []sample{
		{name: "submit", message: &wire.Submit{TimeLeft: 1500000001, Flags: wire.SubmitTry, Trace: trace(), Source: wire.OwnSource | 10}},
		{name: "submit-not-traced", message: &wire.Submit{Source: math.MaxUint32}},
		{name: "submit-told", message: &wire.Submit{Flags: wire.SubmitTry | wire.SubmitTell, Source: wire.OwnSource | 10}},
		{name: "submitted", message: &wire.Submitted{Source: wire.OwnSource | 10, Request: 0x300000000a}},
		{name: "close-send", message: &wire.CloseSend{Source: wire.OwnSource | 10}},
		{name: "abort-request", message: &wire.AbortRequest{Source: wire.OwnSource | 10, Text: "the caller hung up"}},
		{name: "close", message: &wire.Close{Source: wire.OwnSource | 10}},
		{name: "submit-late", message: &wire.Submit{TimeLeft: -1, Source: wire.OwnSource | 11}},
		{name: "abort-request-late", message: &wire.AbortRequest{Source: wire.OwnSource | 11, Code: wire.CodeOver, Text: "2s after it began"}},
	}
}

func laneSamples() []sample {
	return []sample{
		{name: "lanes", message: &wire.Lanes{}},
		{name: "introduce", descriptors: 2, message: &wire.Introduce{Peer: 4, PID: 4711, Side: 1, Name: "talker replica 0"}},
		{name: "introduce-side-0", descriptors: 2, message: &wire.Introduce{Peer: math.MaxUint32, PID: math.MaxUint32}},
		{name: "expect", message: &wire.Expect{Source: 9, Edge: 1, Peer: 4}},
		{name: "expecting", message: &wire.Expecting{Source: 9, Edge: 1}},
		{name: "direct", message: &wire.Direct{Source: 9, Edge: 1, PeerEdge: 2, Peer: 4, PeerSource: 17}},
		{name: "streamed", message: &wire.Streamed{Source: 9, Edge: 1, Deliveries: 1 << 40, Bytes: 1 << 50}},
		{name: "streamed-nothing", message: &wire.Streamed{Source: 9}},
		{name: "report", message: &wire.Report{Millis: 90_000}},
		{name: "lane", descriptors: 1, message: &wire.Lane{Capacity: 1 << 16}},
		{name: "after", message: &wire.After{Frames: 1 << 40}},
		{name: "reported", message: &wire.Reported{Flags: wire.ReplyMore, Piece: []byte(`{"flows":[`)}},
	}
}

func exchangeSamples() []sample {
	return []sample{
		{name: "place", message: &wire.Place{Token: 61, Owner: 1, Put: 33, Flags: wire.FlagOwn, Segment: 2, Offset: 1 << 20, Size: 1 << 33, From: "thinker", To: "talker", Key: "r1_thinker_0"}},
		{name: "place-inline", message: &wire.Place{Token: 62, Owner: math.MaxUint32, Flags: wire.FlagInline, Size: 5, From: "thinker", To: "talker", Key: "müde", Payload: []byte("hello")}},
		{name: "place-largest", message: &wire.Place{
			Token: math.MaxUint32, Owner: math.MaxUint32, Put: math.MaxUint32, Flags: wire.FlagInline, Segment: math.MaxUint32,
			Offset: math.MaxUint64, Size: wire.MaxInline, From: strings.Repeat("f", wire.MaxName), To: strings.Repeat("t", wire.MaxName), Key: strings.Repeat("k", wire.MaxName),
			Payload: counting(wire.MaxInline),
		}},
		{name: "placed", message: &wire.Placed{Token: 61, Entry: 0x9f3c5a7e00000001}},
		{name: "fetch", message: &wire.Fetch{Token: 64, Entry: 0x9f3c5a7e00000001, From: "thinker", To: "talker", Key: "r1_thinker_0"}},
		{name: "fetch-wait", message: &wire.Fetch{Token: 65, Flags: wire.FetchWait, From: "thinker", To: "talker", Key: "omni_thinker_to_talker_kv_cache_r1"}},
		{name: "fetched", message: &wire.Fetched{Token: 64, Delivery: 100, Segment: 3, Offset: 1 << 40, Size: 1 << 33}},
		{name: "fetched-inline", message: &wire.Fetched{Token: 65, Delivery: 101, Flags: wire.FlagInline, Size: 5, Payload: []byte("hello")}},
		{name: "fetched-inline-empty", message: &wire.Fetched{Token: 65, Delivery: 102, Flags: wire.FlagInline}},
		{name: "cancel", message: &wire.Cancel{Token: 65}},
		{name: "cleanup", message: &wire.Cleanup{Token: 66, Owner: 1, Key: "r1"}},
		{name: "cleanup-everything", message: &wire.Cleanup{Token: 67, Owner: 1}},
		{name: "cleaned", message: &wire.Cleaned{Token: 66, Count: 3}},
		{name: "finish-unread", message: &wire.Finish{Delivery: 100, Flags: wire.FinishUnread}},
		{name: "finish-handled", message: &wire.Finish{Delivery: 100, Flags: wire.FinishHandled}},
		{name: "failed-nothing", message: &wire.Failed{Token: 64, Code: wire.CodeNothing}},
	}
}

func directorySamples() []sample {
	pool := [16]byte(counting(16))
	most := [16]byte{}
	for i := range most {
		most[i] = 0xff
	}
	return []sample{
		{name: "publish", descriptors: 1, message: &wire.Publish{Token: 71, Number: 1, Pool: pool, Size: 1 << 30}},
		{name: "publish-extreme", descriptors: 1, message: &wire.Publish{Token: math.MaxUint32, Number: math.MaxUint32, Pool: most, Size: math.MaxUint64}},
		{name: "published", message: &wire.Published{Token: 71}},
		{name: "withdraw", message: &wire.Withdraw{Number: 1, Pool: pool}},
		{name: "find", message: &wire.Find{Token: 72, Number: 1, Pool: pool}},
		{name: "found", descriptors: 2, message: &wire.Found{Token: 72, Owner: 3, PID: 4711, Size: 1 << 30}},
		{name: "found-the-host's", descriptors: 2, message: &wire.Found{Token: math.MaxUint32, PID: math.MaxUint32, Size: math.MaxUint64}},
		{name: "welcome-tensors", message: &wire.Welcome{Version: 1, Node: 1, Epoch: 1, Tensors: []wire.Tensors{{}, {Transport: wire.TransportPool, MinBytes: 64 << 10}}}},
		{name: "serving-tensors", message: &wire.Serving{Token: 2, Tensors: []wire.Tensors{{Transport: wire.TransportIPC}, {Transport: wire.TransportPool, MinBytes: math.MaxUint64}}}},
		{name: "failed-taken", message: &wire.Failed{Token: 71, Code: wire.CodeTaken, Text: "another descriptor has the name"}},
	}
}

// allKinds returns every kind of message.
func allKinds() []wire.Kind {
	var all []wire.Kind
	for kind := range wire.Kind(math.MaxUint16) {
		if kind.Known() {
			all = append(all, kind)
		}
	}
	return all
}

type malformedSample struct {
	name   string
	packet []byte
}

// malformedSamples returns packets that break the protocol, each in one way.
func malformedSamples(t *testing.T) []malformedSample {
	encode := func(m wire.Message, descriptors int) []byte {
		b, err := wire.Append(nil, m, descriptors)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// with returns the packet with some bytes replaced.
	with := func(b []byte, at int, replacement ...byte) []byte {
		copy(b[at:], replacement)
		return b
	}
	// raw returns a message with this body, which need not be valid.
	raw := func(kind wire.Kind, body ...byte) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(wire.HeaderSize+len(body)))
		b = binary.LittleEndian.AppendUint16(b, uint16(kind))
		return append(append(b, 0, 0), body...)
	}
	finish, serve := &wire.Finish{Delivery: 1}, &wire.Serve{Token: 1, Stage: "stage"}
	deliver := func(key string, attrs map[string]string) []byte {
		return encode(&wire.Deliver{Key: key, Attrs: attrs, Flags: wire.FlagInline, Size: 2, Payload: []byte("xy")}, 0)
	}
	const key = wire.HeaderSize + 56 // where the key of a deliver begins
	return []malformedSample{
		{"header-cut-short", encode(finish, 0)[:7]},
		{"length-below-header", with(encode(finish, 0), 0, 7)},
		{"length-beyond-packet", with(encode(finish, 0), 0, 255)},
		{"length-beyond-32-bits-signed", with(encode(finish, 0), 0, 0xff, 0xff, 0xff, 0xff)},
		{"kind-zero", raw(0)},
		{"kind-between", raw(21)},
		{"kind-beyond", raw(61)},
		{"kind-last", raw(math.MaxUint16)},
		{"header-bit-unknown", with(encode(finish, 0), 7, 2)},
		{"header-bits-of-an-unknown-kind", with(raw(21), 7, 3)},
		{"policy-beyond", with(encode(&wire.Serving{Inputs: []wire.Edge{{}}}, 0), wire.HeaderSize+22+2+16, 3)},
		{"second-message-cut-short", append(encode(finish, 0), 1, 2, 3)},
		{"descriptor-missing", with(encode(&wire.Segment{}, 1), 6, 0)},
		{"descriptor-too-many", with(encode(&wire.Segment{}, 1), 6, 2)},
		{"descriptor-unwanted", with(encode(finish, 0), 6, 1)},
		{"field-cut-short", raw(wire.KindRelease, 1, 2, 3)},
		{"fields-missing", raw(wire.KindDeliver)},
		{"trace-missing", raw(wire.KindSubmit, make([]byte, 13)...)},
		{"source-missing", raw(wire.KindSubmit, make([]byte, 9+27)...)},
		{"serve-flags-missing", raw(wire.KindServe, make([]byte, 6)...)},
		{"over-code-missing", raw(wire.KindOver, append([]byte{9, 0, 0, 0, 1}, make([]byte, 16)...)...)},
		{"text-cut-short", with(encode(serve, 0), 12, 6)},
		{"text-too-long", raw(wire.KindServe, append([]byte{0, 0, 0, 0, 201, 0}, make([]byte, 201)...)...)},
		{"text-not-utf8", with(encode(serve, 0), 14, 0xff)},
		{"text-utf8-surrogate", with(encode(serve, 0), 14, 0xed, 0xa0, 0x80)},
		{"magic-wrong", with(encode(&wire.Hello{}, 0), 8, 2)},
		{"state-beyond", with(encode(&wire.Serving{}, 0), 24, 2)},
		{"join-beyond", with(encode(&wire.Serving{}, 0), 25, 2)},
		{"outcome-zero", with(encode(&wire.Over{Outcome: 1}, 0), 12, 0)},
		{"outcome-beyond", with(encode(&wire.Over{Outcome: 1}, 0), 12, 6)},
		{"edges-more-than-bytes", with(encode(&wire.Serving{}, 0), 30, 0xff, 0xff)},
		{"puts-more-than-bytes", with(encode(&wire.Returned{Puts: []uint32{1}}, 0), 8, 2)},
		{"attributes-33", with(deliver("", mostAttrs()), key+2, 33)},
		{"attributes-more-than-bytes", with(deliver("", nil), key+2, 3)},
		{"attribute-without-name", with(deliver("", map[string]string{"a": "v"}), key+4, 0, 0, 2, 0)},
		{"attribute-twice", with(deliver("", map[string]string{"a": "1", "b": "2"}), key+12, 'a')},
		{"attribute-name-too-long", with(deliver("", map[string]string{"a": strings.Repeat("v", 200)}), key+4, 65)},
		{"payload-cut-short", with(deliver("", nil), key+4, 3)},
		{"payload-too-long", with(deliver("", nil), key+4, 1, 0x80)},
		{"payload-beyond-32-bits-signed", with(deliver("", nil), key+4, 0xff, 0xff, 0xff, 0xff)},
		{"payload-without-its-flag", with(deliver("", nil), 18, 0)},
		{"payload-of-another-size", with(deliver("", nil), 56, 3)},
		{"place-missing", raw(wire.KindEnded, make([]byte, 8)...)},
		{"place-cut-short", raw(wire.KindEnded, make([]byte, 8+2+2+7)...)},
		{"side-beyond", with(encode(&wire.Introduce{}, 2), wire.HeaderSize+8, 2)},
		{"introduce-without-its-pidfd", with(encode(&wire.Introduce{}, 2), 6, 1)},
		{"key-missing", raw(wire.KindFetch, make([]byte, 12)...)},
		{"placed-without-its-flag", with(encode(&wire.Place{Flags: wire.FlagInline, Size: 2, Payload: []byte("xy")}, 0), wire.HeaderSize+16, 0)},
		{"placed-of-another-size", with(encode(&wire.Place{Flags: wire.FlagInline, Size: 2, Payload: []byte("xy")}, 0), wire.HeaderSize+32, 3)},
		{"tensors-missing", raw(wire.KindServing, make([]byte, 26)...)},
		{"tensors-more-than-bytes", with(encode(&wire.Serving{Tensors: []wire.Tensors{{}}}, 0), wire.HeaderSize+26, 2)},
		{"transport-beyond", with(encode(&wire.Serving{Tensors: []wire.Tensors{{}}}, 0), wire.HeaderSize+28, 3)},
		{"name-cut-short", raw(wire.KindFind, make([]byte, 23)...)},
		{"descriptor-of-a-name-missing", with(encode(&wire.Publish{}, 1), 6, 0)},
		{"found-without-its-owner", with(encode(&wire.Found{}, 2), 6, 1)},
		{"stages-missing", raw(wire.KindLeave)},
		{"stages-cut-short", raw(wire.KindLeave, 1, 0, 0, 0, 0)},
		{"fetched-of-another-size", with(encode(&wire.Fetched{Flags: wire.FlagInline, Size: 2, Payload: []byte("xy")}, 0), wire.HeaderSize+24, 3)},
	}
}

// skippedSamples returns packets with messages of unknown kinds that a receiver may skip.
func skippedSamples(t testing.TB) []skipped {
	unknown := func(kind uint16, descriptors uint8, body string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, uint32(wire.HeaderSize+len(body)))
		b = binary.LittleEndian.AppendUint16(b, kind)
		return append(append(b, descriptors, 1), body...)
	}
	known := func(m wire.Message) []byte {
		b, err := wire.Append(nil, m, m.Kind().Descriptors())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	release, segment := known(&wire.Release{Delivery: 7}), known(&wire.Segment{Segment: 3, Bytes: 4096})
	marked := known(&wire.Forget{Segment: 3})
	marked[7] = 1
	of := func(name string, kinds []wire.Kind, descriptors int, parts ...[]byte) skipped {
		return skipped{Name: name, Kinds: kinds, Descriptors: descriptors, Hex: hex.EncodeToString(slices.Concat(parts...))}
	}
	return []skipped{
		of("alone", []wire.Kind{}, 0, unknown(22, 0, "")),
		of("before-another", []wire.Kind{wire.KindRelease}, 0, unknown(60000, 0, "fields"), release),
		of("behind-another", []wire.Kind{wire.KindRelease}, 0, release, unknown(math.MaxUint16, 0, "fields")),
		of("with-descriptors", []wire.Kind{wire.KindSegment}, 3, unknown(22, 2, "fields"), segment),
		of("a-kind-that-is-known", []wire.Kind{wire.KindForget}, 0, marked),
	}
}
