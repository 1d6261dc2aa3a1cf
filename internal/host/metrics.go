package host

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// metric describes a figure, and reads it from a T.
type metric[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(T) float64
}

func counter[T any](name, help string, labels []string, read func(T) float64) metric[T] {
	return metric[T]{prometheus.NewDesc("omnibus_"+name, help, labels, nil), prometheus.CounterValue, read}
}

func gauge[T any](name, help string, labels []string, read func(T) float64) metric[T] {
	return metric[T]{prometheus.NewDesc("omnibus_"+name, help, labels, nil), prometheus.GaugeValue, read}
}

// The figures of the bus as a whole.
var busMetrics = []metric[bus.Stats]{
	gauge("requests_live", "Requests that are running, or have results that were not taken.", nil, func(s bus.Stats) float64 { return float64(s.Live) }),
	gauge("join_held_bytes", "Payloads that wait in joins for the other branch.", nil, func(s bus.Stats) float64 { return float64(s.JoinBytes) }),
	gauge("store_arena_bytes", "Space for payloads in the store.", nil, func(s bus.Stats) float64 { return float64(s.Store.ArenaBytes) }),
	gauge("store_free_bytes", "Free space in the store, in any number of pieces.", nil, func(s bus.Stats) float64 { return float64(s.Store.FreeBytes) }),
	gauge("store_largest_free_bytes", "The largest payload that fits.", nil, func(s bus.Stats) float64 { return float64(s.Store.LargestFree) }),
	gauge("store_slots", "Slots for payloads in the store.", nil, func(s bus.Stats) float64 { return float64(s.Store.Slots) }),
	gauge("store_slots_free", "Free slots for payloads in the store.", nil, func(s bus.Stats) float64 { return float64(s.Store.FreeSlots) }),
	gauge("store_objects", "Payloads in the store.", nil, func(s bus.Stats) float64 { return float64(s.Store.Objects) }),
	counter("store_reservations_total", "Payloads that got space in the store.", nil, func(s bus.Stats) float64 { return float64(s.Store.ReservedTotal) }),
	counter("store_aborted_total", "Reservations that were given back unused.", nil, func(s bus.Stats) float64 { return float64(s.Store.AbortedTotal) }),
	gauge("exchange_entries", "Payloads in the exchange that are not fetched.", nil, func(s bus.Stats) float64 { return float64(s.Exchange.Entries) }),
	gauge("exchange_bytes", "Bytes of the payloads in the exchange that are not fetched.", nil, func(s bus.Stats) float64 { return float64(s.Exchange.Bytes) }),
	counter("exchange_swept_total", "Payloads in the exchange that expired without a reader.", nil, func(s bus.Stats) float64 { return float64(s.Exchange.Swept) }),
	counter("tensor_fallbacks_total", "Messages with tensors on a GPU that went through host memory because no other transport was available.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.Fallbacks) }),
	counter("tensor_small_total", "Messages with tensors on a GPU that went through host memory because they were small.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.Small) }),
	counter("tensor_spilt_total", "Messages with tensors on a GPU that went through host memory because the pool had no space.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.Spilt) }),
	counter("tensor_failures_total", "Messages with tensors on a GPU that were not sent because a copy failed.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.Failed) }),
	counter("tensor_registered_segments_total", "Segments registered with a GPU, so that it copies at full speed.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.Registered) }),
	counter("tensor_refused_segments_total", "Segments that were not registered with a GPU, or that it refused.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.Refused) }),
	counter("tensor_staged_bytes_total", "Bytes of tensors in host memory that went to a GPU through a buffer of the process.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.StagedBytes) }),
	counter("tensor_pageable_bytes_total", "Bytes of tensors in host memory that went to a GPU through a buffer of its driver.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.PageableBytes) }),
	gauge("tensor_open_messages", "Messages with tensors on a GPU that were received and are not given back.", nil, func(s bus.Stats) float64 { return float64(s.Tensors.Open) }),
	gauge("store_device_pieces", "Payloads with a piece of GPU memory.", nil, func(s bus.Stats) float64 { return float64(s.Store.Pieces) }),
	gauge("store_device_bytes", "GPU memory of the payloads in the store.", nil, func(s bus.Stats) float64 { return float64(s.Store.PieceBytes) }),
	counter("store_full_total", "Reservations that found no space at once.", nil, func(s bus.Stats) float64 { return float64(s.Store.FullTotal) }),
}

// The figures of tensors on GPUs, by how they travel.
var tensorMetrics = []metric[lane.Sent]{
	counter("tensor_messages_total", "Messages with tensors on a GPU.", []string{"transport"}, func(s lane.Sent) float64 { return float64(s.Messages) }),
	counter("tensor_bytes_total", "Bytes of tensors on a GPU in messages.", []string{"transport"}, func(s lane.Sent) float64 { return float64(s.Bytes) }),
}

var (
	byStage   = []string{"stage"}
	byEdge    = []string{"edge"}
	byChild   = []string{"stage", "process"}
	byProcess = []string{"process", "node"}
	byLane    = []string{"lane", "from_node", "to_node"}
)

// The figures of each stage.
var stageMetrics = []metric[bus.StageStats]{
	gauge("stage_slots", "Requests that the stage can hold at once.", byStage, func(s bus.StageStats) float64 { return float64(s.Slots) }),
	gauge("stage_slots_free", "Requests that the stage can take now; below 0 while it has more than it has slots.", byStage, func(s bus.StageStats) float64 { return float64(s.SlotsFree) }),
	counter("stage_handle_timeouts_total", "Handlers that ran for longer than handle_timeout.", byStage, func(s bus.StageStats) float64 { return float64(s.HandleTimeouts) }),
	counter("stage_admitted_above_total", "Requests that the stage took above its slots, to break a cycle of requests that wait for each other.", byStage, func(s bus.StageStats) float64 { return float64(s.AdmittedAbove) }),
	gauge("stage_queued_messages", "Messages in the stage's mailboxes.", byStage, func(s bus.StageStats) float64 { return float64(s.Queued) }),
	counter("stage_panics_total", "Panics of the stage's handler inside the host.", byStage, func(s bus.StageStats) float64 { return float64(s.Panics) }),
	counter("stage_actor_restarts_total", "Restarts of the stage's actors inside the host.", byStage, func(s bus.StageStats) float64 { return float64(s.Restarts) }),
}

// The figures of each stage that processes serve.
var servedMetrics = []metric[StageStatus]{
	gauge("stage_processes", "Processes that serve the stage.", byStage, func(s StageStatus) float64 { return float64(s.Serving) }),
	gauge("stage_given_up", "1 when the stage's processes are not started again.", byStage, func(s StageStatus) float64 { return boolValue(s.GivenUp) }),
}

// The figures of each edge.
var edgeMetrics = []metric[bus.EdgeStats]{
	counter("edge_deliveries_total", "Deliveries with a payload.", byEdge, func(e bus.EdgeStats) float64 { return float64(e.Deliveries) }),
	counter("edge_payload_bytes_total", "Bytes of payload.", byEdge, func(e bus.EdgeStats) float64 { return float64(e.Bytes) }),
	counter("edge_inline_total", "Deliveries that carried their payload.", byEdge, func(e bus.EdgeStats) float64 { return float64(e.Inline) }),
	counter("edge_copies_total", "Payloads that the host copied.", byEdge, func(e bus.EdgeStats) float64 { return float64(e.Copies) }),
	counter("edge_direct_total", "Deliveries that went directly from one process to another.", byEdge, func(e bus.EdgeStats) float64 { return float64(e.Direct) }),
	counter("edge_spilled_total", "Payloads on the heap, or in memory of their own, because the store had no contiguous space.", byEdge, func(e bus.EdgeStats) float64 { return float64(e.Spilled) }),
	counter("edge_dropped_total", "Deliveries that the edge's policy dropped.", byEdge, func(e bus.EdgeStats) float64 { return float64(e.Dropped) }),
	gauge("edge_latency_p50_seconds", "From sent to handled, the median of a sample.", byEdge, func(e bus.EdgeStats) float64 { return e.P50.Seconds() }),
	gauge("edge_latency_p99_seconds", "From sent to handled, the 99th percentile of a sample.", byEdge, func(e bus.EdgeStats) float64 { return e.P99.Seconds() }),
	counter("edge_duplicates_total", "Deliveries that a retry repeated, and that were removed.", byEdge, func(e bus.EdgeStats) float64 { return float64(e.Duplicates) }),
}

// The figures of the connector of each edge that has one.
var connectorMetrics = []metric[connector.Health]{
	counter("connector_puts_total", "Payloads that were put.", byEdge, func(c connector.Health) float64 { return float64(c.Puts) }),
	counter("connector_gets_total", "Payloads that were got.", byEdge, func(c connector.Health) float64 { return float64(c.Gets) }),
	counter("connector_put_bytes_total", "Bytes that were put.", byEdge, func(c connector.Health) float64 { return float64(c.BytesPut) }),
	counter("connector_got_bytes_total", "Bytes that were got.", byEdge, func(c connector.Health) float64 { return float64(c.BytesGot) }),
	counter("connector_inline_writes_total", "Payloads that travelled in the metadata.", byEdge, func(c connector.Health) float64 { return float64(c.Inline) }),
	counter("connector_shared_writes_total", "Payloads that the transport carried.", byEdge, func(c connector.Health) float64 { return float64(c.Shared) }),
	counter("connector_missing_total", "Gets that found nothing.", byEdge, func(c connector.Health) float64 { return float64(c.Missing) }),
	counter("connector_timeouts_total", "Operations that ended with their deadline.", byEdge, func(c connector.Health) float64 { return float64(c.Timeouts) }),
	counter("connector_errors_total", "Operations that failed otherwise.", byEdge, func(c connector.Health) float64 { return float64(c.Errors) }),
}

// The times of the transfers on each edge that has a connector.
var transferMetrics = []metric[bus.EdgeStats]{
	counter("connector_sending_seconds_total", "Time for putting the payloads of the edge.", byEdge, func(e bus.EdgeStats) float64 { return e.Transfers.Sending.Seconds() }),
	counter("connector_inflight_seconds_total", "Time from the end of puts to the start of gets.", byEdge, func(e bus.EdgeStats) float64 { return e.Transfers.InFlight.Seconds() }),
	counter("connector_receiving_seconds_total", "Time for getting the payloads of the edge.", byEdge, func(e bus.EdgeStats) float64 { return e.Transfers.Receiving.Seconds() }),
}

// The figures of the deliveries in flight on each edge.
var trafficMetrics = []metric[bus.EdgeStatus]{
	gauge("edge_inflight_deliveries", "Deliveries that were sent and are not finished.", byEdge, func(e bus.EdgeStatus) float64 { return float64(e.Deliveries) }),
	gauge("edge_inflight_bytes", "Payload of the deliveries that were sent and are not finished.", byEdge, func(e bus.EdgeStatus) float64 { return float64(e.Bytes) }),
	gauge("edge_queued_deliveries", "Deliveries that wait for credit.", byEdge, func(e bus.EdgeStatus) float64 { return float64(e.Queued) }),
}

// The figures of each lane, that is the deliveries that go directly from one process to another.
var laneMetrics = []metric[host.LaneStatus]{
	counter("lane_deliveries_total", "Deliveries that went directly from one process to another.", byLane, func(l host.LaneStatus) float64 { return float64(l.Deliveries) }),
	counter("lane_payload_bytes_total", "Bytes of payload that went directly from one process to another.", byLane, func(l host.LaneStatus) float64 { return float64(l.Bytes) }),
	gauge("lane_streams", "Streams of requests that go directly from one process to another.", byLane, func(l host.LaneStatus) float64 { return float64(l.Streams) }),
	gauge("lane_inflight_deliveries", "Direct deliveries that were sent and are not finished.", byLane, func(l host.LaneStatus) float64 { return float64(l.InFlight) }),
	gauge("lane_inflight_bytes", "Payload of the direct deliveries that were sent and are not finished.", byLane, func(l host.LaneStatus) float64 { return float64(l.InFlightBytes) }),
	gauge("lane_queued_deliveries", "Direct deliveries that wait for credit.", byLane, func(l host.LaneStatus) float64 { return float64(l.Queued) }),
}

// The figures of each attached process.
var processMetrics = []metric[host.ProcessStats]{
	gauge("process_held_deliveries", "Deliveries and results that the process has not finished.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Held) }),
	gauge("process_requests", "Requests that the process submitted and that are not over.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Requests) }),
	gauge("process_placed_payloads", "Payloads of the process that lie in the exchange, or that others have fetched.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Placed) }),
	gauge("process_fetched_payloads", "Payloads that the process has fetched and not released.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Fetched) }),
	gauge("process_kept_payloads", "Payloads that the process reads though it has finished their deliveries.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Kept.Payloads) }),
	gauge("process_kept_bytes", "Bytes of the payloads that the process reads though it has finished their deliveries.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Kept.Bytes) }),
	gauge("process_kept_oldest_seconds", "Since when the process has had the oldest of the payloads that it reads though it has finished their deliveries.", byProcess, func(p host.ProcessStats) float64 { return p.Kept.Oldest.Seconds() }),
	gauge("process_left_bytes", "Bytes of the payloads that the process may read though its connection is over.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Left.Bytes) }),
	gauge("process_alone_bytes", "Segments that the process has offered for one payload each.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Arena.AloneBytes) }),
	gauge("process_arena_bytes", "Memory that the process has offered for its payloads.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Arena.Bytes) }),
	gauge("process_arena_used_bytes", "Memory that the process's payloads take.", byProcess, func(p host.ProcessStats) float64 { return float64(p.Arena.Used) }),
	gauge("process_stopped", "1 when the process is stopped (SIGSTOP).", byProcess, func(p host.ProcessStats) float64 { return boolValue(p.Stopped) }),
}

// The figures of each process that the host started.
var childMetrics = []metric[ChildStatus]{
	gauge("process_up", "1 when the process serves its stage.", byChild, func(c ChildStatus) float64 { return boolValue(c.State == "running") }),
	counter("process_restarts_total", "How often the process was started again.", byChild, func(c ChildStatus) float64 { return float64(c.Restarts) }),
}

var requestsDesc = prometheus.NewDesc("omnibus_requests_total", "Requests that are over.", []string{"result"}, nil)

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// registry holds the figures of the bus, of its processes, and of this one.
func (h *running) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{h}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// collector reads the figures on each scrape. Each metric is one snapshot.
type collector struct{ host *running }

// Describe implements prometheus.Collector.
func (collector) Describe(to chan<- *prometheus.Desc) {
	to <- requestsDesc
	describe(to, busMetrics)
	describe(to, tensorMetrics)
	describe(to, stageMetrics)
	describe(to, servedMetrics)
	describe(to, edgeMetrics)
	describe(to, connectorMetrics)
	describe(to, transferMetrics)
	describe(to, trafficMetrics)
	describe(to, laneMetrics)
	describe(to, processMetrics)
	describe(to, childMetrics)
}

func describe[T any](to chan<- *prometheus.Desc, metrics []metric[T]) {
	for _, m := range metrics {
		to <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) { c.collectStatus(to, c.host.status()) }

func (collector) collectStatus(to chan<- prometheus.Metric, s Status) {
	for result, n := range map[string]int64{
		"completed": s.Stats.Completed, "failed": s.Stats.Failed,
		"aborted": s.Stats.Aborted, "deadline": s.Stats.Deadline,
	} {
		to <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n), result)
	}
	s.Stats.Tensors = s.Stats.Tensors.Plus(s.Stats.ProcessTensors)
	collect(to, busMetrics, s.Stats)
	collect(to, tensorMetrics, s.Stats.Tensors.Default, lane.Default.String())
	collect(to, tensorMetrics, s.Stats.Tensors.IPC, lane.IPC.String())
	collect(to, tensorMetrics, s.Stats.Tensors.Pool, lane.Pool.String())
	for _, st := range s.Stats.Stages {
		collect(to, stageMetrics, st, st.Name)
	}
	for _, st := range s.Stages {
		collect(to, servedMetrics, st, st.Stage)
	}
	traffic := s.UnderWay()
	for _, e := range s.Stats.Edges {
		name := e.From + "->" + e.To
		collect(to, edgeMetrics, e, name)
		if e.Connector != nil {
			collect(to, connectorMetrics, *e.Connector, name)
			collect(to, transferMetrics, e, name)
		}
		collect(to, trafficMetrics, traffic[name], name)
	}
	names := make(map[uint32]string, len(s.Processes))
	for _, p := range s.Processes {
		names[p.Node] = ProcessName(p)
		collect(to, processMetrics, p, names[p.Node], nodeText(p.Node))
	}
	for _, l := range s.Lanes {
		collect(to, laneMetrics, l, names[l.From]+"->"+names[l.To], nodeText(l.From), nodeText(l.To))
	}
	for _, ch := range s.Children {
		collect(to, childMetrics, ch, ch.Stage, ch.Name)
	}
}

func collect[T any](to chan<- prometheus.Metric, metrics []metric[T], from T, labels ...string) {
	for _, m := range metrics {
		to <- prometheus.MustNewConstMetric(m.desc, m.kind, m.read(from), labels...)
	}
}

func nodeText(node uint32) string { return strconv.FormatUint(uint64(node), 10) }

// ProcessName names a process by its stages, which last, or else by the name that it gives itself.
func ProcessName(p host.ProcessStats) string {
	if len(p.Stages) > 0 {
		return strings.Join(p.Stages, ",")
	}
	return strings.ToValidUTF8(p.Name, "?")
}

// UnderWay adds up the deliveries of all requests by edge.
func (s *Status) UnderWay() map[string]bus.EdgeStatus {
	sums := make(map[string]bus.EdgeStatus)
	for _, r := range s.Requests {
		for _, e := range r.Edges {
			sum := sums[e.Edge]
			sum.Deliveries += e.Deliveries
			sum.Bytes += e.Bytes
			sum.Queued += e.Queued
			sums[e.Edge] = sum
		}
	}
	return sums
}
