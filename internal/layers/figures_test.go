package layers

// The figures of this file are only ever made smaller.

// mostLines bounds the lines of code of a package, and packagesAbove those of the packages that
// have more.
const mostLines = 5_000

var packagesAbove = map[string]int{
	"bench": 6942,
	"bus":   6263,
}

// partsOfMap bounds the lines of parts of the repository, with all packages below them, and
// partsAbove those of the parts that have more.
var (
	partsOfMap = map[string]int{
		"actors":          1_600,
		"cmd":             2_500,
		"codec":           5_000,
		"config":          3_000,
		"connector":       4_000,
		"cudaipc":         9_500,
		"internal/host":   3_500,
		"internal/ledger": 700,
		"internal/peer":   1_400,
		"internal/wire":   700,
		"messages":        142,
		"ringbuf":         725,
		"shmstore":        3_857,
	}
	partsAbove = map[string]int{
		"actors":          1671,
		"cmd":             2591,
		"codec":           5175,
		"config":          3427,
		"connector":       5543,
		"cudaipc":         10059,
		"internal/ledger": 819,
		"internal/peer":   1721,
		"internal/wire":   2084,
	}
)

// mostTouching bounds the functions and methods of a package that touch the fields of one of
// its types, and typesAbove those of the types that have more.
const mostTouching = 40

var typesAbove = map[string]int{
	"bus.Bus":                61,
	"bus.Delivery":           76,
	"bus.Request":            98,
	"bus/host.Server":        51,
	"bus.StageSpec":          55,
	"bus.Task":               72,
	"bus.edge":               61,
	"bus.flow":               83,
	"bus/node.link":          70,
	"bus.outlet":             72,
	"bus/host.session":       87,
	"bus.stage":              76,
	"config.node":            62,
	"cudaipc/cuda.gpu":       46,
	"cudaipc/drivertest.rig": 58,
	"cudaipc/emul.primary":   44,
	"internal/host.running":  41,
	"shmstore.Store":         86,
	"shmstore.grantView":     46,
}

// locksAbove are the calls that lock a mutex of a type outside its methods. Other types have none.
var locksAbove = map[string]int{
	"actors.Producer":                1,
	"actors.Writer":                  1,
	"bus.Request":                    1,
	"bus.edge":                       1,
	"bus.outlet":                     6,
	"bus.Station":                    9,
	"bus/host.reports":               1,
	"bus/host.source":                1,
	"bus/node.Node":                  1,
	"bus/node.link":                  1,
	"bus/node.toldFigures":           1,
	"connector/connectortest.server": 1,
	"connector/ring.Table":           5,
	"connector/shm.process":          2,
	"cudaipc/cuda.driver":            1,
	"cudaipc/emul.gpu":               4,
	"cudaipc/emul.primary":           10,
	"cudaipc/lane.Sender":            1,
	"cudaipc/lane.device":            1,
	"internal/host/child.Child":      2,
	"internal/host/child.Manager":    1,
	"shmstore.largeTable":            1,
}
