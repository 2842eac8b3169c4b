// Package resource holds the objects of a cluster as people and programs see them through the API: nodes, pools,
// volumes, events. Vocabulary: plain values with their JSON names; no behaviour, no transport. The control plane
// fills them, the API carries them, faces show them.
package resource

import "time"

// Node is one machine of the cluster.
type Node struct {
	Name     string    `json:"name"`
	Online   bool      `json:"online"`
	Witness  bool      `json:"witness"`          // has a vote and no pools
	Member   bool      `json:"member"`           // runs a member of the cluster store
	Leader   bool      `json:"leader,omitempty"` // of the cluster store
	API      string    `json:"api"`              // host:port
	Data     string    `json:"data"`             // host:port of replica sessions
	NBD      []string  `json:"nbd,omitempty"`    // addresses of its NBD server
	Version  string    `json:"version,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Pools    []string  `json:"pools,omitempty"`    // names
	Attached []string  `json:"attached,omitempty"` // volumes whose engine runs here
	Cause    string    `json:"cause,omitempty"`    // why it is not online
}

// Pool is one directory on one disk of one node.
type Pool struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	Node     string   `json:"node"`
	Dir      string   `json:"dir"`
	Online   bool     `json:"online"`
	Kind     string   `json:"fileSystem,omitempty"`
	Total    uint64   `json:"totalBytes"`
	Free     uint64   `json:"freeBytes"`
	Reserved uint64   `json:"reservedBytes"`
	Direct   bool     `json:"directIO"`
	Replicas int      `json:"replicas"`
	Cause    string   `json:"cause,omitempty"` // why it is not online
	Leftover []string `json:"leftovers,omitempty"`
}

// Replica is one copy of a volume.
type Replica struct {
	Pool      string `json:"pool"` // name
	Node      string `json:"node"`
	State     string `json:"state"` // in-sync, catching-up, absent, failing, refused, damaged
	Connected bool   `json:"connected"`
	OutOfSync uint64 `json:"outOfSyncBytes"`
	Used      uint64 `json:"usedBytes"`
	Cause     string `json:"cause,omitempty"`
}

// Volume is a block device with copies. Attached, redundant and verified are three facts.
type Volume struct {
	ID         string      `json:"id"`
	Name       string      `json:"name"`
	Size       uint64      `json:"sizeBytes"`
	ExtentSize uint64      `json:"extentBytes"`
	Copies     int         `json:"replicas"` // wanted
	Attached   bool        `json:"attached"`
	Redundant  bool        `json:"redundant"` // every wanted copy is in-sync
	Verified   *Verified   `json:"verified,omitempty"`
	Holder     string      `json:"holder,omitempty"`
	Mode       string      `json:"mode,omitempty"` // explicit, automatic, recovery
	State      string      `json:"state"`          // detached, attaching, attached, suspended, ended
	Suspended  string      `json:"suspended,omitempty"`
	Doubtful   uint64      `json:"doubtfulBytes"`
	Epoch      uint64      `json:"epoch"`
	Generation uint64      `json:"generation"`
	Replicas   []Replica   `json:"copies"`
	Progress   *Progress   `json:"progress,omitempty"`
	Address    *Attachment `json:"address,omitempty"`
	Sent       uint64      `json:"sentBytes"`   // by its engine to replicas on other nodes, since it was attached
	Copied     uint64      `json:"copiedBytes"` // fetched to bring replicas back, since it was attached
}

// Progress is a copy under way.
type Progress struct {
	Todo uint64 `json:"todoBytes"`
	Done uint64 `json:"doneBytes"`
	Rate uint64 `json:"bytesPerSecond"`
	Left string `json:"timeLeft,omitempty"`
}

// Attachment is where an attached volume can be reached.
type Attachment struct {
	Volume string `json:"volume"`
	Node   string `json:"node"`
	Socket string `json:"socket,omitempty"`   // unix socket on that node
	URI    string `json:"uri,omitempty"`      // nbd:// over TCP
	Local  string `json:"localUri,omitempty"` // nbd+unix://
}

// Verified is the result of the last comparison of all copies.
type Verified struct {
	At          time.Time    `json:"at"`
	Equal       bool         `json:"equal"`
	Bytes       uint64       `json:"bytes"` // compared, per copy
	Copies      int          `json:"copies"`
	Differences []Difference `json:"differences,omitempty"` // at most 100
}

// Difference is a range in which copies differ.
type Difference struct {
	Offset uint64            `json:"offset"`
	Length uint64            `json:"length"`
	Sums   map[string]string `json:"sums"` // pool name to checksum
}

// Event is one change of state, with its reason and numbers.
type Event struct {
	ID     string    `json:"id"` // sorts by time
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`
	Object string    `json:"object"` // "volume tea", "pool ssd1", "node n1"
	Reason string    `json:"reason"` // a stable word
	Text   string    `json:"text"`
	Bytes  uint64    `json:"bytes,omitempty"`
	Level  string    `json:"level"` // info, warning, error
}

// Status is the cluster at a glance.
type Status struct {
	Cluster  string   `json:"cluster"`
	Healthy  bool     `json:"healthy"`
	Store    string   `json:"store"` // the cluster store: "ok", or why not
	Nodes    int      `json:"nodes"`
	Online   int      `json:"nodesOnline"`
	Pools    int      `json:"pools"`
	Volumes  int      `json:"volumes"`
	Attached int      `json:"volumesAttached"`
	Degraded int      `json:"volumesNotRedundant"`
	Total    uint64   `json:"totalBytes"`
	Free     uint64   `json:"freeBytes"`
	Problems []string `json:"problems,omitempty"`
	// Survives says in words which loss stops automatic decisions.
	Survives string `json:"survives"`
}

// Version is what a node runs.
type Version struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Node     string `json:"node,omitempty"`
	Cluster  string `json:"cluster,omitempty"`
	Store    int    `json:"storeVersion"`
	Protocol int    `json:"protocolVersion"`
}

// NewVolume asks for a volume.
type NewVolume struct {
	Name       string   `json:"name"`
	Size       uint64   `json:"sizeBytes"`
	Copies     int      `json:"replicas"`
	ExtentSize uint64   `json:"extentBytes,omitempty"`
	Pools      []string `json:"pools,omitempty"` // names, instead of placement
}

// NewPool asks for a pool.
type NewPool struct {
	Node string `json:"node"`
	Dir  string `json:"dir"`
	Name string `json:"name"`
}

// Attach asks for an attachment.
type Attach struct {
	Node string `json:"node,omitempty"` // empty: the node that is asked
}
