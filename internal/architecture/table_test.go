package architecture

// row is a layer: packages that know the same things. A package belongs to the row with the longest prefix of its
// path, and may import, directly or through others, packages of its own row and of the rows that it sees.
type row struct {
	name     string
	packages []string // path prefixes in the module
	sees     []string // names of rows above this one
	apart    bool     // packages of different prefixes of this row never import each other
	not      string   // what it must not know
}

// table is the architecture, from the top. A row sees only rows above it.
func table() []row {
	const (
		vocabulary = "vocabulary"
		core       = "replication core"
		store      = "store"
		wire       = "wire"
		drivers    = "drivers"
		exports    = "exports"
		placement  = "placement"
		etcd       = "etcd"
		control    = "control"
		api        = "api"
		faces      = "faces"
		support    = "test support"
	)
	return []row{
		{name: vocabulary, not: "anything else of the project", packages: []string{
			"internal/fault", "internal/bitmap", "internal/volume", "internal/block", "internal/resource", "internal/etcd/kv",
		}},
		{name: core, packages: []string{"internal/replication"}, sees: []string{vocabulary},
			not: "sockets, files, clocks, goroutines, and the store: drivers join them"},
		{name: store, packages: []string{"internal/store"}, sees: []string{vocabulary},
			not: "the network, the cluster, and the replication core: drivers join them"},
		{name: wire, packages: []string{"internal/wire"}, sees: []string{vocabulary, core},
			not: "disks, timers, and who is on the other end"},
		{name: drivers, packages: []string{"internal/driver"}, sees: []string{vocabulary, core, store, wire},
			not: "the cluster's store, the control plane, and exports"},
		{name: exports, packages: []string{"internal/nbd"}, sees: []string{vocabulary}, apart: true,
			not: "replication, the control plane, and each other: wiring gives them a block.Opener"},
		{name: placement, packages: []string{"internal/placement"}, sees: []string{vocabulary},
			not: "everything that acts"},
		{name: etcd, packages: []string{"internal/etcd"}, sees: []string{vocabulary},
			not: "what is kept in it, exports, and faces"},
		{name: control, packages: []string{"internal/control"}, sees: []string{vocabulary, core, store, wire, drivers, placement},
			not: "etcd's own packages (it has internal/etcd/kv), exports, the API, and faces"},
		{name: api, packages: []string{"internal/api"}, sees: []string{vocabulary},
			not: "how the cluster works: all that acts is behind api.Backend"},
		{name: faces, packages: []string{"internal/cli"}, sees: []string{vocabulary, api}, apart: true,
			not: "how the cluster works: they reach it through the API alone"},
		{name: support, packages: []string{
			"internal/simulation", "internal/etcd/etcdtest", "internal/store/disk/memory", "internal/api/fake",
			"internal/architecture", "internal/e2e", "tools",
		}, sees: []string{vocabulary, core, store, etcd, api},
			not: "what it does not help to test; and nobody may know it but tests"},
		{name: "wiring", packages: []string{"internal/daemon", "internal/dev", "internal/demo", "cmd/samovar"}, sees: []string{
			vocabulary, core, store, wire, drivers, exports, placement, etcd, control, api, faces,
		}, not: "test support: it has no place in the program"},
	}
}

// ban is a pair of packages within what rows allow that must not meet all the same.
type ban struct{ from, to, why string }

func bans() []ban {
	return []ban{
		{"internal/replication/engine", "internal/replication/replica", "they speak by messages, and meet in drivers and simulations"},
		{"internal/replication/replica", "internal/replication/engine", "they speak by messages, and meet in drivers and simulations"},
		{"internal/driver/enginehost", "internal/store", "an engine has no disk: local replicas are reached by a session too"},
		{"internal/driver/enginehost", "internal/replication/replica", "an engine has no disk: local replicas are reached by a session too"},
		{"internal/driver/replicahost", "internal/replication/engine", "a replica does not know who drives its engine"},
	}
}

// outside says which rows may import which modules of others, directly.
func outside() map[string][]string {
	return map[string][]string{
		"go.etcd.io":             {"etcd"},
		"go.uber.org/zap":        {"etcd"},
		"google.golang.org/grpc": {"etcd"},
		"golang.org/x/sys":       {"store", "drivers", "exports", "control", "wiring"},
		"github.com/zeebo/xxh3":  {"store", "drivers", "control"},
		"github.com/spf13":       {"faces", "wiring"},
		"go.yaml.in/yaml":        {"faces", "wiring"},
		"gopkg.in/yaml.v3":       {"faces", "wiring"},
		"sigs.k8s.io/yaml":       {"faces", "wiring"},
	}
}

// sealed modules are reached, also through others, by these rows only.
func sealed() map[string][]string {
	return map[string][]string{"go.etcd.io": {"etcd", "wiring"}}
}

// pure packages are values: no input, output, clock, goroutine. They can be run a million times in a simulation, and
// twice with the same outcome.
func pure() []string {
	return []string{"internal/fault", "internal/bitmap", "internal/volume", "internal/replication", "internal/placement"}
}
