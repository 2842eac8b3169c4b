package simulation

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"samovar/internal/replication"
)

var (
	bugs  = flag.String("sim.bugs", "", "plant only this bug, also in TestSeeds")
	limit = flag.Uint64("sim.limit", 3000, "within how many seeds a planted bug must be found")
)

// plant sets one field of Bugs by its name.
func plant(name string) (b replication.Bugs) {
	if name != "" {
		reflect.ValueOf(&b).Elem().FieldByName(name).SetBool(true)
	}
	return b
}

// TestPlantedBugs plants each deliberate mistake and counts the seeds until a checker sees it. The same seed without
// the mistake must pass, so that it is the mistake that was seen.
func TestPlantedBugs(t *testing.T) {
	var table strings.Builder
	fields := reflect.TypeOf(replication.Bugs{})
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if *bugs != "" && *bugs != name {
			continue
		}
		c := config()
		c.Bugs = plant(name)
		found, first := uint64(0), Result{}
		sweep(*base, *limit, func(seed uint64) Result { return Run(seed, c) }, func(r Result) bool {
			if r.Broken != "" && (found == 0 || r.Seed < found) {
				found, first = r.Seed, r
			}
			return found == 0
		})
		if found == 0 {
			t.Errorf("%s was not found within %d seeds", name, *limit)
			fmt.Fprintf(&table, "%-20s not found in %d\n", name, *limit)
			continue
		}
		text, _, _ := strings.Cut(first.Broken, "\n")
		fmt.Fprintf(&table, "%-20s %5d  %.150s\n", name, found-*base+1, text)
		c.Bugs = replication.Bugs{}
		if clean := Run(found, c); clean.Broken != "" {
			t.Errorf("%s: seed %d fails without it too: %s", name, found, clean.Broken)
		}
	}
	t.Logf("seeds until each planted bug was found:\n%s", table.String())
}
