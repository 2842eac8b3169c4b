package control

import (
	"encoding/json"
	"time"

	"samovar/internal/fault"
	"samovar/internal/resource"
	"samovar/internal/volume"
)

// memberRecord is a node that ever was part of the cluster.
type memberRecord struct {
	API     string   `json:"api"`
	Data    string   `json:"data"`
	NBD     []string `json:"nbd,omitempty"`
	Socket  string   `json:"socket,omitempty"`
	Witness bool     `json:"witness,omitempty"`
	Member  bool     `json:"member,omitempty"`
}

// nodeRecord is a node that runs.
type nodeRecord struct {
	Run     string    `json:"run"` // of its process
	Started time.Time `json:"started"`
	Version string    `json:"version"`
}

// poolRecord is a pool.
type poolRecord struct {
	ID   volume.PoolID `json:"id"`
	Name string        `json:"name"`
	Node string        `json:"node"`
	Dir  string        `json:"dir"`
}

// claimRecord is the process that has a pool open.
type claimRecord struct {
	Node string `json:"node"`
	Run  string `json:"run"`
}

// wantRecord is what people want of a volume.
type wantRecord struct {
	Copies   int                `json:"copies"`
	Created  time.Time          `json:"created"`
	Attach   string             `json:"attach,omitempty"` // node of an explicit attachment
	Verified *resource.Verified `json:"verified,omitempty"`
}

// statsRecord is what a node says about what it has.
type statsRecord struct {
	Run     string         `json:"run"`
	Pools   []poolStats    `json:"pools,omitempty"`
	Engines []engineStats  `json:"engines,omitempty"`
	Faults  []replicaFault `json:"faults,omitempty"`
	Leader  bool           `json:"leader,omitempty"`
}

type poolStats struct {
	ID       volume.PoolID     `json:"id"`
	Online   bool              `json:"online"`
	Cause    string            `json:"cause,omitempty"`
	Kind     string            `json:"kind,omitempty"`
	Direct   bool              `json:"direct"`
	Total    uint64            `json:"total"`
	Free     uint64            `json:"free"`
	Reserved uint64            `json:"reserved"`
	Used     map[string]uint64 `json:"used,omitempty"` // by volume id
	Leftover []string          `json:"leftovers,omitempty"`
}

type replicaFault struct {
	Volume volume.ID     `json:"volume"`
	Pool   volume.PoolID `json:"pool"`
	Text   string        `json:"text"`
}

// engineStats is an engine as its node sees it.
type engineStats struct {
	Volume     volume.ID          `json:"volume"`
	Mode       string             `json:"mode"`
	Phase      string             `json:"phase"`
	Suspended  string             `json:"suspended,omitempty"`
	Doubtful   uint64             `json:"doubtful,omitempty"`
	Epoch      uint64             `json:"epoch"`
	Generation uint64             `json:"generation"`
	Members    []memberStats      `json:"members"`
	Progress   *resource.Progress `json:"progress,omitempty"`
	Sent       uint64             `json:"sent"`
	Copied     uint64             `json:"copied"`
}

type memberStats struct {
	Pool      volume.PoolID `json:"pool"`
	State     string        `json:"state"`
	Connected bool          `json:"connected"`
	OutOfSync uint64        `json:"outOfSync,omitempty"`
	Cause     string        `json:"cause,omitempty"`
}

func volumeKey(id volume.ID) string   { return "volumes/" + id.String() }
func wantKey(id volume.ID) string     { return "wants/" + id.String() }
func deletedKey(id volume.ID) string  { return "deleted/" + id.String() }
func poolKey(id volume.PoolID) string { return "pools/" + id.String() }

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("encode a record: " + err.Error()) // plain structs of ours always encode
	}
	return b
}

func decode(key string, b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return &fault.Error{Kind: fault.Corrupt, Op: "read " + key + " in the cluster store", Text: "it is not what this version writes", Err: err}
	}
	return nil
}
