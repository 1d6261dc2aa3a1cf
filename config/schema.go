package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/omnibus-runtime/omnibus/bus"
)

//go:generate go test -run TestSchemaIsWritten -update .

// A schema is a JSON Schema of the accepted values. It accepts at least what the
// checker accepts, and more: it sees neither other places of a file nor the values
// of variables.
type schema map[string]any

// Schema returns the JSON Schema (draft 2020-12) of a pipeline file, for
// editors. It is made of the tables by which Parse reads a file. What only the
// whole of a file shows, such as a cycle of edges, is left to Parse.
func Schema() []byte {
	c := &reading{checker: new(checker)}
	var s sections
	known, shared := c.fileFields(&s)
	file := known.open(shared)
	maps.Copy(file, schema{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "A pipeline of Omnibus",
		"description": "Stages, the edges between them, and settings of the bus. Keys that are not listed belong to the models.",
		"anyOf":       []schema{required("stages"), required("stage_args"), required(keyBase)},
		"not":         required("stages", "stage_args"),
		// What stands on another file may leave to it what a file needs.
		"if":    schema{"not": required(keyBase)},
		"then":  complete(),
		"$defs": c.definitions(),
	})
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		panic(err) // nothing in it depends on input
	}
	return append(text, '\n')
}

// complete is what a file has that stands alone.
func complete() schema {
	stages := schema{"minItems": 1, "type": "array"}
	named := schema{"additionalProperties": required("name")}
	return schema{"properties": schema{
		"stages": stages, "stage_args": stages,
		"connectors": named,
		"runtime":    schema{"properties": schema{"connectors": named}},
	}}
}

func (c *reading) definitions() schema {
	var d draft
	var e listed
	known, shared := c.stageFields(&d)
	stage := known.open(shared)
	stage["required"] = []string{keyStageID}
	edge := c.edgeFields(&e).closed()
	edge["required"] = []string{"from", "to"}
	known, shared = c.runtimeFields(&sections{})
	settings := slices.Sorted(maps.Keys(places()))
	settings = slices.DeleteFunc(settings, func(key string) bool { return key == "max_inflight" }) // a stage has it, too
	return schema{
		"stage":         stage,
		"stage_omnibus": c.stageOmnibusFields(&d).settings(),
		"edge":          edge,
		"bus":           c.busFields(&Pipeline{}).settings(),
		"runtime":       known.open(shared),
		"platform":      c.platformSchema(),
		"connector":     c.connectorSchema(),
		"key":           schema{"not": schema{"enum": settings}, "description": "Any but the settings of the bus, which stand under omnibus."},
		"variable": schema{
			"type": "string", "pattern": `\$\{`,
			"description": "A text with variables of the environment: ${NAME}, or ${oc.env:NAME,default}.",
		},
	}
}

// platformSchema is that of a file without what stands only at its top.
func (c *reading) platformSchema() schema {
	known, shared := c.fileFields(&sections{})
	known[keyBase], known[keyPlatforms] = reader{}, reader{}
	section := known.open(shared)
	for _, key := range []string{keyBase, keyPlatforms} {
		section["properties"].(schema)[key] = false
	}
	return section
}

// connectorSchema has the settings of each type under a condition.
func (c *checker) connectorSchema() schema {
	definition := c.connectorFields(&connectorParts{}).closed()
	var types []schema
	for _, name := range slices.Sorted(maps.Keys(extraRules)) {
		settings := schema{}
		for key, rule := range extraRules[name] {
			settings[key] = nullable(rule.takes)
		}
		isType := required("name")
		isType["properties"] = schema{"name": schema{"const": name}}
		types = append(types, schema{
			"if":   isType,
			"then": schema{"properties": schema{"extra": schema{"properties": settings}}},
		})
	}
	definition["allOf"] = types
	return definition
}

// closed is the schema of a map with these keys and no others.
func (f fields) closed() schema {
	return schema{"type": "object", "properties": f.properties(), "additionalProperties": false}
}

// settings is the schema of settings of the bus. The checker refuses a null
// there, but a file that is laid over another takes a setting away with it.
func (f fields) settings() schema {
	lax := make(fields, len(f))
	for key, field := range f {
		lax[key] = reader{takes: nullable(field.takes)}
	}
	return lax.closed()
}

// open is the schema of a map with these keys and any others, but for settings of the bus.
func (f fields) open(shared fields) schema {
	properties := shared.properties()
	maps.Copy(properties, f.properties())
	return schema{"type": "object", "properties": properties, "propertyNames": ref("key")}
}

func (f fields) properties() schema {
	properties := make(schema, len(f))
	for key, field := range f {
		properties[key] = field.takes
	}
	return properties
}

func required(keys ...string) schema { return schema{"required": keys} }

func ref(definition string) schema { return schema{"$ref": "#/$defs/" + definition} }

func list(item schema) schema { return schema{"type": "array", "items": item} }

func mapOf(value schema) schema { return schema{"type": "object", "additionalProperties": value} }

func anyOf(choices ...schema) schema { return schema{"anyOf": choices} }

func orVariable(s schema) schema { return anyOf(s, ref("variable")) }

// nullable accepts a null as well.
func nullable(s schema) schema {
	s = maps.Clone(s)
	choices, isChoice := s["anyOf"].([]schema)
	kind, isKind := s["type"].(string)
	switch {
	case isChoice:
		s["anyOf"] = append(slices.Clone(choices), schema{"type": "null"})
	case isKind:
		s["type"] = []string{kind, "null"}
	case s["$ref"] != nil:
		s["anyOf"] = []schema{{"$ref": s["$ref"]}, {"type": "null"}}
		delete(s, "$ref")
	}
	return s
}

// integer is a range, of which the largest number is no bound.
func integer(from, to int64) schema {
	s := schema{"type": "integer", "minimum": from}
	if to < math.MaxInt64 {
		s["maximum"] = to
	}
	return s
}

func oneOf[T ~string](words ...T) schema { return orVariable(schema{"enum": words}) }

// The values that the readers take.
var (
	takesText        = schema{"type": "string", "minLength": 1}
	takesFlag        = orVariable(schema{"type": "boolean"})
	takesWindow      = anyOf(schema{"const": Unbounded}, integer(1, bus.MaxWindow), ref("variable"))
	takesDuration    = orVariable(schema{"type": "string", "pattern": `^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`})
	takesSize        = anyOf(integer(1, math.MaxInt64), schema{"type": "string", "pattern": sizePattern()}, ref("variable"))
	takesSizeOrNone  = anyOf(integer(0, math.MaxInt64), schema{"type": "string", "pattern": sizePattern()}, ref("variable"))
	takesCommandLine = schema{"type": "array", "minItems": 1, "items": schema{"type": "string"}}
	takesEnvironment = schema{
		"type": "object", "propertyNames": schema{"pattern": "^[^=]+$"},
		"additionalProperties": schema{"type": "string"},
	}
	takesUsers   = list(orVariable(integer(0, math.MaxUint32-1)))
	takesStageID = anyOf(integer(0, math.MaxInt64), schema{
		"type": "string", "pattern": printedPattern, "maxLength": bus.MaxStageName, "not": schema{"pattern": "/|->"},
	})

	takesConnectors = schema{
		"type": "object", "propertyNames": schema{"pattern": printedPattern, "maxLength": maxConnectorBytes},
		"additionalProperties": ref("connector"),
	}
	takesConnectorType = anyOf(schema{"enum": connectorTypes}, schema{"type": "string", "pattern": familyPattern()}, ref("variable"))
)

const (
	// printedPattern is text that neither begins nor ends with a blank.
	printedPattern = `^\S([\s\S]*\S)?$`
	namePattern    = `^[A-Za-z0-9._-]{1,64}$|\$\{`
)

func sizePattern() string {
	units := slices.DeleteFunc(slices.Sorted(maps.Keys(sizeUnits)), func(unit string) bool { return unit == "" })
	return fmt.Sprintf("^[0-9]+ ?(%s)?$", strings.Join(units, "|"))
}

func familyPattern() string {
	return fmt.Sprintf("^(%s).*Connector$", strings.Join(slices.Sorted(maps.Keys(families)), "|"))
}

// referencesSchema is that of connectors by the stages at their other ends.
func referencesSchema(prefix string) schema {
	definition := ref("connector")
	definition["required"] = []string{"name"}
	return schema{
		"type": "object", "propertyNames": schema{"pattern": "^" + regexp.QuoteMeta(prefix) + "."},
		"additionalProperties": anyOf(schema{"type": "string"}, definition),
	}
}
