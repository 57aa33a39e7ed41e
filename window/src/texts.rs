//! All that the window says by itself: one row for each text, with every language in it, so that none is forgotten. What `claviger` says
//! (findings, reasons, errors) is in English.

macro_rules! texts {
    ($($name:ident: $english:literal, $german:literal;)*) => {
        /// The texts of one language.
        pub struct Texts {
            $(pub $name: &'static str,)*
        }

        pub static ENGLISH: Texts = Texts { $($name: $english,)* };
        pub static GERMAN: Texts = Texts { $($name: $german,)* };
    };
}

/// Those of the language that the environment names.
pub fn of_environment() -> &'static Texts {
    let named = ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    of_language(&named.into_iter().find(|value| !value.is_empty()).unwrap_or_default())
}

fn of_language(name: &str) -> &'static Texts {
    if name.starts_with("de") { &GERMAN } else { &ENGLISH }
}

texts! {
    // Pages and what is everywhere.
    volumes: "Volumes", "Datenträger";
    create_page: "Create", "Anlegen";
    measure_page: "Measure", "Messen";
    back: "Back", "Zurück";
    cancel: "Cancel", "Abbrechen";
    close: "Close", "Schließen";
    cancelled: "Cancelled.", "Abgebrochen.";
    done: "Done.", "Fertig.";
    failed: "It did not work.", "Es ist nicht gelungen.";
    more: "More", "Mehr";
    left: "{} left", "noch {}";
    seconds: "s", "s";
    minutes: "min", "min";
    is_missing: "Still to be answered", "Noch zu beantworten";
    is_there: "There is such a file already", "Diese Datei gibt es schon";
    not_the_same: "The two new passwords are not the same.", "Die beiden neuen Passwörter sind verschieden.";
    agree_first: "Please confirm first that you have read the warning.", "Bitte zuerst bestätigen, dass die Warnung gelesen ist.";
    understood: "I have read this, and want it", "Ich habe das gelesen und will es";
    // The first page.
    mounted: "Open now", "Jetzt geöffnet";
    nothing_mounted: "No volume is open.", "Kein Datenträger ist geöffnet.";
    at_hand: "At hand", "Zur Hand";
    nothing_at_hand: "No favourites, and no removable drive with something encrypted.", "Keine Favoriten und kein Wechseldatenträger mit etwas Verschlüsseltem.";
    favourite: "favourite", "Favorit";
    recent: "opened before", "schon geöffnet";
    drive: "drive", "Laufwerk";
    drop_here: "Drop a file, a folder or a device here, or choose one.", "Eine Datei, einen Ordner oder ein Gerät hierher ziehen oder auswählen.";
    choose: "Choose…", "Auswählen…";
    open_folder: "Open folder", "Ordner öffnen";
    lock: "Lock", "Sperren";
    unlock: "Unlock", "Entsperren";
    unmount: "Unmount", "Aushängen";
    unmount_all: "Unmount all", "Alle aushängen";
    clean_up: "Clean up", "Aufräumen";
    unmounting: "Writing everything and unmounting", "Alles schreiben und aushängen";
    locking: "Locking", "Sperren";
    looking: "Looking at it", "Ansehen";
    read_only: "read-only", "schreibgeschützt";
    locked: "locked", "gesperrt";
    server_gone: "Its server has ended; clean up what it left.", "Der zugehörige Prozess ist beendet; bitte aufräumen.";
    server_silent: "It does not answer: the drive may have been pulled out.", "Keine Antwort: Vielleicht wurde das Laufwerk abgezogen.";
    drive_gone: "The drive is gone: what was written last may be lost.", "Das Laufwerk ist weg: Was zuletzt geschrieben wurde, kann verloren sein.";
    writes_failed: "Writes have failed; the last changes may be lost.", "Schreiben ist fehlgeschlagen; die letzten Änderungen können verloren sein.";
    damage_prevented: "A write that would have damaged the hidden volume was refused.", "Ein Schreibzugriff, der das verborgene Volume beschädigt hätte, wurde verweigert.";
    // A volume that was chosen.
    open_title: "Open a volume", "Einen Datenträger öffnen";
    unlock_title: "Unlock a volume", "Einen Datenträger entsperren";
    is_locked: "It is mounted, and its keys are forgotten until you unlock it.", "Er ist eingehängt; seine Schlüssel sind vergessen, bis er entsperrt wird.";
    is_surely: "This is a volume of", "Das ist ein Datenträger im Format";
    is_maybe: "This may be a volume of", "Das ist vielleicht ein Datenträger im Format";
    no_mark: "Such volumes have no mark: only a password can tell.", "Solche Datenträger haben kein Kennzeichen: Nur ein Passwort zeigt es.";
    is_folder: "This is an encrypted folder:", "Das ist ein Ordner, dessen Dateien einzeln verschlüsselt sind:";
    is_disk: "This is a disk; some of its partitions may be volumes.", "Das ist eine Platte; manche ihrer Partitionen sind vielleicht Datenträger.";
    is_plain_folder: "This folder is not encrypted in any way that is known here.", "Dieser Ordner ist auf keine hier bekannte Art verschlüsselt.";
    is_noise: "This looks like random bytes. It is a volume only if you know it.", "Das sieht wie zufällige Bytes aus. Ein Datenträger ist es nur, wenn man es weiß.";
    is_nothing: "This is not an encrypted volume.", "Das ist kein verschlüsselter Datenträger.";
    half_way: "It is being encrypted anew or converted, and that was interrupted. Nothing is lost: it goes on where it was.", "Er wird neu verschlüsselt oder umgewandelt, und das wurde unterbrochen. Nichts ist verloren: Es geht weiter, wo es war.";
    conversion_half_way: "It was being converted into a new volume, and that was interrupted. It goes on where it was.", "Er wurde in einen neuen Datenträger umgewandelt, und das wurde unterbrochen. Es geht weiter, wo es war.";
    go_on: "Go on", "Fortsetzen";
    mount: "Mount", "Einhängen";
    mounting: "Trying the password", "Das Passwort probieren";
    password: "Password", "Passwort";
    show: "show", "zeigen";
    layout: "Keyboard layout:", "Tastaturbelegung:";
    capitals: "Only capital letters: is Caps Lock on?", "Nur Großbuchstaben: Ist die Feststelltaste an?";
    partition: "Partition", "Partition";
    keyfiles: "Keyfiles", "Schlüsseldateien";
    add: "Add", "Hinzufügen";
    remove: "Remove", "Entfernen";
    pim: "PIM", "PIM";
    change_nothing: "Read only, change nothing", "Nur lesen, nichts ändern";
    can_be_locked: "Can be locked while it is mounted", "Kann gesperrt werden, während er eingehängt ist";
    protect_hidden: "Protect a hidden volume in it", "Ein verborgenes Volume darin schützen";
    hidden_password: "Password of the hidden volume", "Passwort des verborgenen Volumes";
    place: "Folder to mount it on", "Ordner zum Einhängen";
    wrong_password: "This password does not open it.", "Dieses Passwort öffnet ihn nicht.";
    why_not: "Why does it not open?", "Warum geht er nicht auf?";
    explaining: "Looking for the reason", "Den Grund suchen";
    findings: "What was found", "Was gefunden wurde";
    change_it: "Change…", "Ändern…";
    // Creating.
    create_title: "A new volume", "Ein neuer Datenträger";
    expert_title: "All choices", "Alle Möglichkeiten";
    guide: "Guide", "Führung";
    experts: "For experts", "Für Fachleute";
    what_for: "What is it for?", "Wofür ist er?";
    few_files: "a few files that matter", "ein paar wichtige Dateien";
    external: "a disk or stick that is carried around", "eine Platte oder ein Stick zum Mitnehmen";
    laptop: "a computer that is carried around", "ein Rechner zum Mitnehmen";
    desktop: "a computer that stays where it is", "ein Rechner, der bleibt, wo er ist";
    shared_with: "It also has to open on", "Er soll sich auch öffnen lassen unter";
    against: "What shall it withstand?", "Was soll er aushalten?";
    theft: "it is lost or stolen", "er geht verloren oder wird gestohlen";
    repair: "it is given away for repair", "er wird zur Reparatur gegeben";
    coercion: "somebody can make me tell a password", "jemand kann mich zwingen, ein Passwort zu sagen";
    evil_maid: "somebody can change it secretly", "jemand kann ihn heimlich verändern";
    cloud: "it lies with somebody else, who sees every state of it", "er liegt bei jemandem, der jeden Zustand sieht";
    what_fits: "What fits?", "Was passt?";
    choosing: "Measuring this machine, and choosing", "Diesen Rechner messen und auswählen";
    recommended: "What fits", "Was passt";
    nothing_fits: "No volume that can be made here fits all of that. What fits best:", "Kein Datenträger, der hier angelegt werden kann, passt zu alldem. Am besten passt:";
    speaks_against: "What speaks against it", "Was dagegen spricht";
    folder_instead: "A folder instead, which grows with its files", "Stattdessen ein Ordner, der mit seinen Dateien wächst";
    folder_explanation: "Its files are encrypted one by one, as eCryptfs does, so that they can be copied one by one, too. How many there are, how large, and when they were changed shows, and nobody notices if somebody changes them.", "Seine Dateien werden einzeln verschlüsselt, wie eCryptfs es tut, und lassen sich so auch einzeln kopieren. Wie viele es sind, wie groß und wann geändert, sieht man, und niemand bemerkt, wenn jemand sie verändert.";
    new_file: "Where: a new file", "Wo: eine neue Datei";
    new_folder: "Where: a new folder", "Wo: ein neuer Ordner";
    size: "How large (100M, 10G)", "Wie groß (100M, 10G)";
    new_password: "New password", "Neues Passwort";
    again: "Once more", "Noch einmal";
    recovery_file: "Recovery key, to be printed: a new file", "Wiederherstellungsschlüssel zum Ausdrucken: eine neue Datei";
    file_system: "File system in it", "Dateisystem darin";
    create: "Create the volume", "Datenträger anlegen";
    creating: "Creating", "Anlegen";
    created: "The volume is there.", "Der Datenträger ist da.";
    print_recovery: "Print the recovery key, keep it apart from the volume, and delete the file.", "Den Wiederherstellungsschlüssel drucken, getrennt aufbewahren und die Datei löschen.";
    usual: "as usual", "wie üblich";
    format: "Format", "Format";
    cipher: "Cipher", "Chiffre";
    hash: "Hash", "Hash";
    key_size: "Key size, in bits", "Schlüssellänge in Bits";
    sector_size: "Sector size, in bytes", "Sektorgröße in Bytes";
    integrity: "Integrity (hmac-sha256)", "Integrität (hmac-sha256)";
    label: "Label", "Name";
    quick: "Quick: do not fill it; shows which parts are in use", "Schnell: nicht füllen; zeigt, welche Teile benutzt sind";
    // Changing.
    change_title: "Change a volume", "Einen Datenträger ändern";
    keyslots: "What opens it", "Was ihn öffnet";
    keyslot: "Keyslot", "Schlüsselfach";
    kind: "Kind", "Art";
    derivation: "Key derivation", "Schlüsselableitung";
    iterations: "iterations", "Durchläufe";
    remarks: "Remarks", "Bemerkungen";
    which_opens: "the one that the password opens", "das, welches das Passwort öffnet";
    change_password: "Another password", "Anderes Passwort";
    change_explanation: "The data stay as they are. Whoever has an old copy of the header and the old password still opens it.", "Die Daten bleiben, wie sie sind. Wer eine alte Kopie des Kopfes und das alte Passwort hat, öffnet ihn weiterhin.";
    change: "Change", "Ändern";
    new_keyfiles: "New keyfiles", "Neue Schlüsseldateien";
    add_password: "One more password", "Ein weiteres Passwort";
    add_explanation: "All passwords open the volume.", "Alle Passwörter öffnen den Datenträger.";
    add_recovery: "A recovery key", "Ein Wiederherstellungsschlüssel";
    recovery_explanation: "It opens the volume when the password is forgotten. It is written into a new file that only you can read.", "Er öffnet den Datenträger, wenn das Passwort vergessen ist. Er kommt in eine neue Datei, die nur Sie lesen können.";
    remove_password: "Remove a password", "Ein Passwort entfernen";
    remove_explanation: "The password that you type here opens it no longer. The last one is never removed.", "Das hier eingegebene Passwort öffnet ihn nicht mehr. Das letzte wird nie entfernt.";
    remove_warning: "Whoever knows only this password loses the volume.", "Wer nur dieses Passwort kennt, verliert den Datenträger.";
    remove_keyslot: "Remove a keyslot", "Ein Schlüsselfach entfernen";
    kill_explanation: "The password is one of another keyslot, which stays.", "Das Passwort ist das eines anderen Fachs, das bleibt.";
    backup: "Save the header", "Den Kopf sichern";
    backup_explanation: "If its header is destroyed, the volume is lost. The backup opens with today's password for ever: keep it as safe as the volume.", "Ist der Kopf zerstört, ist der Datenträger verloren. Die Sicherung öffnet sich immer mit dem heutigen Passwort: so sicher aufbewahren wie ihn selbst.";
    backup_file: "File of the backup", "Datei der Sicherung";
    save: "Save", "Sichern";
    restore: "Bring the header back", "Den Kopf zurückholen";
    restore_explanation: "The password is the one that the backup has.", "Das Passwort ist das der Sicherung.";
    restore_button: "Bring back", "Zurückholen";
    restore_warning: "The present header is replaced.", "Der jetzige Kopf wird ersetzt.";
    convert: "Convert into a new volume", "In einen neuen Datenträger umwandeln";
    convert_explanation: "Everything is copied into a new volume, and both are compared. The old one is only read.", "Alles wird in einen neuen Datenträger kopiert, und beide werden verglichen. Der alte wird nur gelesen.";
    convert_button: "Convert", "Umwandeln";
    go_on_converting: "Go on converting", "Umwandeln fortsetzen";
    go_on_title: "Go on where it was interrupted", "Fortsetzen, wo unterbrochen wurde";
    reencrypt: "Encrypt anew in place", "An Ort und Stelle neu verschlüsseln";
    reencrypt_explanation: "The volume gets a new key. It can be interrupted at any moment, and goes on later.", "Der Datenträger bekommt einen neuen Schlüssel. Man kann jederzeit unterbrechen und später fortsetzen.";
    reencrypt_warning: "Other passwords than this one end with the old key. Make a backup before.", "Andere Passwörter als dieses enden mit dem alten Schlüssel. Vorher eine Sicherung machen.";
    begin: "Begin", "Anfangen";
    hidden_title: "A hidden volume in it", "Ein verborgenes Volume darin";
    hidden_explanation: "It lies in the free space behind the files of this volume. Without its password nobody can tell that it is there. Without a size it is as large as is safe.", "Es liegt im freien Platz hinter den Dateien. Ohne sein Passwort kann niemand sagen, dass es da ist. Ohne Größe wird es so groß wie sicher möglich.";
    hidden_warning: "The free space there is overwritten, with any hidden volume in it.", "Der freie Platz dort wird überschrieben, auch ein verborgenes Volume darin.";
    outer_password: "Password of this volume", "Passwort dieses Datenträgers";
    // Measuring.
    measure_explanation: "How fast the ciphers are in this machine's memory: the mean of encryption and decryption.", "Wie schnell die Chiffren im Speicher dieses Rechners sind: Mittel aus Ver- und Entschlüsseln.";
    buffer: "Buffer", "Puffer";
    aes_instructions: "With AES instructions", "Mit AES-Befehlen";
    measure: "Begin to measure", "Messung beginnen";
    measuring: "Measuring", "Messen";
    encryption: "encryption", "Verschlüsseln";
    decryption: "decryption", "Entschlüsseln";
    lab_title: "The lab", "Das Labor";
    lab_explanation: "It makes volumes with and without encryption, works on them, and tells what encryption costs. That takes five to ten minutes, and can be interrupted.", "Es legt Datenträger mit und ohne Verschlüsselung an, arbeitet darauf und sagt, was Verschlüsselung kostet. Das dauert fünf bis zehn Minuten und lässt sich unterbrechen.";
    preset: "What is measured", "Was gemessen wird";
    preset_sweep: "reads and writes by block size", "Lesen und Schreiben nach Blockgröße";
    preset_files: "what encrypts file by file", "was Dateien einzeln verschlüsselt";
    preset_network: "volumes behind a network", "Datenträger hinter einem Netz";
    lab_dir: "Folder on the disk to be measured; without one, memory", "Ordner auf der Platte, die gemessen wird; ohne ihn der Arbeitsspeicher";
    lab_out: "Folder for figures and report", "Ordner für Zahlen und Bericht";
    facility: "Only this facility", "Nur dieses Verfahren";
    workload: "Only this workload", "Nur diese Aufgabe";
    repeats: "Passes", "Durchgänge";
    run_lab: "Run the lab", "Labor starten";
    running_lab: "The lab is measuring", "Das Labor misst";
    lab_interrupted: "A run was interrupted:", "Ein Lauf wurde unterbrochen:";
    open_report: "Open the report", "Bericht öffnen";
    // Choosing a file.
    choose_title: "Choose a file, a folder or a device", "Eine Datei, einen Ordner oder ein Gerät auswählen";
    path: "Path", "Pfad";
    this_folder: "This folder", "Dieser Ordner";
    up: "Up", "Aufwärts";
    devices: "Devices", "Geräte";
    home_folder: "Home", "Eigener Ordner";
    take: "Take", "Nehmen";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_the_language() {
        assert!(std::ptr::eq(of_language("de_AT.UTF-8"), &GERMAN) && std::ptr::eq(of_language("C"), &ENGLISH));
    }
}
