package store

import (
	"encoding/json"
	"time"

	"samovar/internal/fault"
	"samovar/internal/volume"
)

// Identity is who a pool is. It is made once, by CreatePool.
type Identity struct {
	Pool    volume.PoolID
	Cluster [16]byte
	Name    string
}

// identityBody is the body of the identity file, as JSON.
type identityBody struct {
	Cluster volume.ID `json:"cluster"` // an id of the same form
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
}

func encodeIdentity(id Identity, created time.Time) ([]byte, error) {
	body, err := json.Marshal(identityBody{Cluster: id.Cluster, Name: id.Name, Created: created.UTC()})
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "encode identity of pool "+id.Name, err)
	}
	return encodeFrame(frameKind{magicIdentity, identityVersion, id.Pool, volume.ID{}}, body), nil
}

func parseIdentity(file []byte) (Identity, time.Time, error) {
	body, err := parseFrame(frameKind{magic: magicIdentity, version: identityVersion}, file)
	if err != nil {
		return Identity{}, time.Time{}, err
	}
	var b identityBody
	if err := parseJSON(body, &b); err != nil {
		return Identity{}, time.Time{}, err
	}
	id := Identity{Pool: volume.PoolID(file[24:40]), Cluster: b.Cluster, Name: b.Name}
	if id.Pool == (volume.PoolID{}) {
		return Identity{}, time.Time{}, fault.New(fault.Corrupt, "check identity", "it has no pool id")
	}
	return id, b.Created, nil
}
