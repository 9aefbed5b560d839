package lockpool

import (
	"encoding/json"
	"os"
)

type ownerRecord struct {
	Host string `json:"host"`
	PID  int    `json:"pid"`
}

// owner is what the nodes of this process say about it, for people who look at
// them and for other clients' listings: JSON in UTF-8.
func owner() []byte {
	host, _ := os.Hostname() // empty if unknown
	record, err := json.Marshal(ownerRecord{host, os.Getpid()})
	if err != nil {
		panic(err) // a string and a number
	}
	return record
}
