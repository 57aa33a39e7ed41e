//! The window's own texts: a row for each, in every language, so that none is forgotten. Texts of `claviger` (findings, reasons,
//! errors) are in English.

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

/// The texts in the environment's language.
pub fn of_environment() -> &'static Texts {
    let named = ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
    of_language(&named.into_iter().find(|value| !value.is_empty()).unwrap_or_default())
}

fn of_language(name: &str) -> &'static Texts {
    if name.starts_with("de") { &GERMAN } else { &ENGLISH }
}

texts! {
    // Texts of pages, and those on every page.
    volumes: "Volumes", "Datenträger";
    create_page: "New volume", "Neu anlegen";
    measure_page: "Measure", "Messen";
    back: "Back", "Zurück";
    next: "Continue", "Weiter";
    busy: "Wait until the current task is finished, or cancel it.", "Bitte warten, bis die laufende Aufgabe fertig ist, oder sie abbrechen.";
    go_back_to_it: "Go back to this task", "Zurück zu dieser Aufgabe";
    cancel: "Cancel", "Abbrechen";
    close: "Close", "Schließen";
    cancelled: "Cancelled.", "Abgebrochen.";
    done: "Done.", "Fertig.";
    failed: "This failed.", "Das ist fehlgeschlagen.";
    more: "More options", "Weitere Optionen";
    left: "{} left", "noch {}";
    seconds: "s", "s";
    minutes: "min", "min";
    is_missing: "This is required.", "Das wird gebraucht.";
    is_there: "A file with this name already exists", "Eine Datei mit diesem Namen gibt es schon";
    no_room: "Only {} are free there.", "Dort sind nur {} frei.";
    not_the_same: "The new passwords do not match.", "Die neuen Passwörter stimmen nicht überein.";
    agree_first: "Confirm the warning first.", "Bitte zuerst die Warnung bestätigen.";
    understood: "I have read the warning and want to continue", "Ich habe die Warnung gelesen und möchte fortfahren";
    // The first page.
    mounted: "Open", "Geöffnet";
    nothing_mounted: "No volume is open.", "Kein Datenträger ist geöffnet.";
    at_hand: "Available", "Verfügbar";
    nothing_at_hand: "No favourites and no encrypted removable drives.", "Keine Favoriten und keine verschlüsselten Wechseldatenträger.";
    open_other: "Open a volume…", "Datenträger öffnen…";
    open_it: "Open…", "Öffnen…";
    folder_or_device: "Folder or device…", "Ordner oder Gerät…";
    is_mounted: "mounted", "eingehängt";
    is_served: "served", "freigegeben";
    needs_attention: "needs attention", "Achtung";
    more_actions: "More actions", "Weitere Aktionen";
    used_of: "{used} of {all} used", "{used} von {all} belegt";
    favourite: "favourite", "Favorit";
    recent: "used recently", "kürzlich benutzt";
    drop_here: "Drop a file, folder or device here to see what it is.", "Datei, Ordner oder Gerät hierher ziehen, um zu sehen, was es ist.";
    choose: "Choose…", "Auswählen…";
    no_file_manager: "No file manager opened the folder. The files are in {}.", "Kein Dateimanager hat den Ordner geöffnet. Die Dateien liegen in {}.";
    open_folder: "Open folder", "Ordner öffnen";
    lock: "Lock", "Sperren";
    unlock: "Unlock", "Entsperren";
    unmount: "Unmount", "Aushängen";
    unmount_all: "Unmount all", "Alle aushängen";
    clean_up: "Clean up", "Aufräumen";
    unmounting: "Writing changes and unmounting", "Änderungen werden geschrieben, dann wird ausgehängt";
    unmounted: "{} is unmounted.", "{} ist ausgehängt.";
    all_unmounted: "All volumes are unmounted.", "Alle Datenträger sind ausgehängt.";
    mounted_at: "“{name}” is mounted at {dir}. Under Volumes, you can open its folder or unmount it.", "„{name}“ ist unter {dir} eingehängt. Unter „Datenträger“ lässt sich der Ordner öffnen oder der Datenträger aushängen.";
    unlocked: "“{}” is unlocked.", "„{}“ ist entsperrt.";
    locking: "Locking", "Wird gesperrt";
    looking: "Identifying", "Wird erkannt";
    read_only: "read-only", "schreibgeschützt";
    locked: "locked", "gesperrt";
    server_gone: "Its server has exited. Clean up what it left behind.", "Der zugehörige Prozess ist beendet. Bitte aufräumen.";
    server_silent: "It does not respond. Was the drive unplugged?", "Keine Antwort. Wurde das Laufwerk abgezogen?";
    drive_gone: "The drive was removed. Recent changes may be lost.", "Das Laufwerk wurde entfernt. Die letzten Änderungen können verloren sein.";
    writes_failed: "Writing failed. Recent changes may be lost.", "Das Schreiben ist fehlgeschlagen. Die letzten Änderungen können verloren sein.";
    damage_prevented: "A write was refused because it would have damaged the hidden volume.", "Ein Schreibzugriff wurde verweigert, weil er das verborgene Volume beschädigt hätte.";
    // A volume that was chosen.
    open_title: "Open “{}”", "„{}“ öffnen";
    unlock_title: "Unlock “{}”", "„{}“ entsperren";
    is_locked: "The volume is mounted but locked. Unlock it to use its files.", "Der Datenträger ist eingehängt, aber gesperrt. Zum Benutzen entsperren.";
    is_surely: "Format:", "Format:";
    is_maybe: "Possible format:", "Mögliches Format:";
    no_mark: "This format has no signature. Only the password shows whether this is a volume.", "Dieses Format hat keine Kennung. Nur das Passwort zeigt, ob es ein Datenträger ist.";
    is_folder: "Encrypted folder:", "Verschlüsselter Ordner:";
    is_disk: "This is a partitioned disk. Some of its partitions may be encrypted volumes.", "Das ist eine partitionierte Platte. Einige Partitionen können verschlüsselte Datenträger sein.";
    partitions: "Partitions", "Partitionen";
    is_plain_folder: "This is not an encrypted folder.", "Das ist kein verschlüsselter Ordner.";
    is_beheaded: "This does not begin like an encrypted volume. If its beginning was overwritten, a copy of the header may still open it. Possible format: {}.", "Das beginnt nicht wie ein verschlüsselter Datenträger. Falls sein Anfang überschrieben wurde, kann eine Kopie des Headers ihn noch öffnen. Mögliches Format: {}.";
    is_noise: "The data look random. This may be an encrypted volume.", "Die Daten sehen zufällig aus. Das kann ein verschlüsselter Datenträger sein.";
    is_nothing: "This does not look like an encrypted volume.", "Das sieht nicht wie ein verschlüsselter Datenträger aus.";
    half_way: "A reencryption or conversion was interrupted. Nothing is lost. You can resume it.", "Eine Neuverschlüsselung oder Umwandlung wurde unterbrochen. Nichts ist verloren. Sie lässt sich fortsetzen.";
    conversion_half_way: "Copying into a new volume was interrupted. You can resume it.", "Das Kopieren in einen neuen Datenträger wurde unterbrochen. Es lässt sich fortsetzen.";
    go_on: "Resume", "Fortsetzen";
    mount: "Mount", "Einhängen";
    mounting: "Trying the password", "Das Passwort wird geprüft";
    password: "Password", "Passwort";
    show: "Show", "Zeigen";
    layout: "Keyboard layout:", "Tastaturbelegung:";
    capitals: "All capitals. Is Caps Lock on?", "Nur Großbuchstaben. Ist die Feststelltaste an?";
    partition: "Partition", "Partition";
    keyfiles: "Keyfiles", "Schlüsseldateien";
    add: "Add", "Hinzufügen";
    remove: "Remove", "Entfernen";
    pim: "PIM", "PIM";
    change_nothing: "Read-only", "Schreibgeschützt öffnen";
    can_be_locked: "Allow locking while mounted", "Sperren erlauben, während er eingehängt ist";
    protect_hidden: "Protect the hidden volume inside", "Das verborgene Volume darin schützen";
    hidden_password: "Password of the hidden volume", "Passwort des verborgenen Volumes";
    hidden_keyfiles: "Keyfiles of the hidden volume", "Schlüsseldateien des verborgenen Volumes";
    place: "Mount point", "Ordner zum Einhängen";
    wrong_password: "This password does not open it.", "Dieses Passwort öffnet ihn nicht.";
    why_not: "Why does it not open?", "Warum lässt er sich nicht öffnen?";
    explaining: "Looking for the reason", "Der Grund wird gesucht";
    verify: "Verify", "Prüfen";
    verifying: "Verifying", "Wird geprüft";
    is_sound: "No damage found.", "Kein Schaden gefunden.";
    is_damaged: "There is damage.", "Es gibt einen Schaden.";
    copy_header: "Without its header the volume is lost. Back up the header under “Change…”.", "Ohne seinen Header ist der Datenträger verloren. Den Header unter „Ändern…“ sichern.";
    copy_files: "Back up the files regularly.", "Die Dateien regelmäßig sichern.";
    restore_header: "Copy the files to another volume first. Then restore the header from a backup under “Change…”.", "Zuerst die Dateien auf einen anderen Datenträger kopieren. Dann den Header unter „Ändern…“ aus einer Sicherung wiederherstellen.";
    restore_files: "Copy the files that still open to another place, and restore the others from a backup.", "Dateien, die sich noch öffnen lassen, an einen anderen Ort kopieren und die anderen aus einer Sicherung wiederherstellen.";
    findings: "Findings", "Befunde";
    swap_case: "Open with capital and small letters swapped", "Mit vertauschter Groß- und Kleinschreibung öffnen";
    by_backup: "Open with the backup header at the end", "Mit der Header-Kopie am Ende öffnen";
    remove_it: "Remove…", "Entfernen…";
    find_out: "find out", "herausfinden";
    hash_hint: "Such as SHA-512. Opening is faster if you know the hash.", "Etwa SHA-512. Ist der Hash bekannt, geht das Öffnen schneller.";
    change_it: "Change…", "Ändern…";
    // Creating.
    create_title: "New volume", "Neuer Datenträger";
    expert_title: "All options of a format on one page", "Alle Optionen eines Formats auf einer Seite";
    guide: "Step by step", "Schritt für Schritt";
    experts: "All options…", "Alle Optionen…";
    step_purpose: "Purpose", "Zweck";
    step_place: "Place and size", "Ort und Größe";
    step_password: "Password", "Passwort";
    step_review: "Review", "Überblick";
    what_for: "What is it for?", "Wofür ist er?";
    few_files: "A few important files", "Ein paar wichtige Dateien";
    few_files_more: "One file that you can copy and back up anywhere", "Eine Datei, die sich überallhin kopieren und sichern lässt";
    external: "A USB stick or external disk", "Ein USB-Stick oder eine externe Platte";
    external_more: "A file on it, or the whole drive", "Eine Datei darauf oder das ganze Laufwerk";
    laptop: "Private files on a laptop", "Private Dateien auf einem Laptop";
    laptop_more: "A computer that travels and may be lost", "Ein Rechner, der unterwegs ist und verloren gehen kann";
    desktop: "Private files on a desktop computer", "Private Dateien auf einem Desktop-Rechner";
    desktop_more: "A computer that stays where it is", "Ein Rechner, der an seinem Platz bleibt";
    shared_with: "It must also open on", "Soll sich auch öffnen lassen unter";
    against: "What should it protect against?", "Wovor soll er schützen?";
    theft: "Loss or theft", "Verlust oder Diebstahl";
    repair: "A repair shop that reads it", "Eine Werkstatt, die mitliest";
    coercion: "Being forced to reveal a password", "Zwang, ein Passwort zu verraten";
    evil_maid: "Someone who changes it secretly", "Jemand, der ihn heimlich verändert";
    cloud: "A cloud provider who sees every version", "Ein Cloud-Anbieter, der jede Version sieht";
    choosing: "Measuring this machine to choose a format", "Dieser Rechner wird gemessen, um ein Format zu wählen";
    recommended: "Suggested", "Vorschlag";
    reasons: "Why this format?", "Warum dieses Format?";
    nothing_fits: "No format meets all requirements. The closest one:", "Kein Format erfüllt alle Anforderungen. Am nächsten kommt:";
    speaks_against: "Drawbacks", "Nachteile";
    folder_instead: "A folder that is synchronised", "Ein Ordner, der synchronisiert wird";
    folder_more: "Each file is encrypted separately, and the folder grows with its files", "Jede Datei wird einzeln verschlüsselt, und der Ordner wächst mit seinen Dateien";
    folder_explanation: "eCryptfs encrypts each file separately, so you can copy files one by one. Others can see their number, sizes and dates, and can change them unnoticed.", "eCryptfs verschlüsselt jede Datei einzeln, so lassen sich Dateien einzeln kopieren. Andere sehen ihre Anzahl, Größe und Daten und können sie unbemerkt verändern.";
    new_file: "New file", "Neue Datei";
    where_to: "File or device", "Datei oder Gerät";
    new_folder: "New folder", "Neuer Ordner";
    size: "Size, such as 100M or 10G", "Größe, etwa 100M oder 10G";
    free_there: "{} free there", "Dort sind {} frei";
    new_password: "New password", "Neues Passwort";
    again: "Repeat the password", "Passwort wiederholen";
    is_set: "set", "festgelegt";
    strength: "{verdict}: {time} of guessing with one graphics card.", "{verdict}: {time} Raten mit einer Grafikkarte.";
    weak: "Weak", "Schwach";
    fair: "Fair", "Mittel";
    strong: "Strong", "Stark";
    stronger: "Several random words are stronger.", "Mehrere zufällige Wörter sind stärker.";
    below_a_second: "less than a second", "weniger als eine Sekunde";
    about_a_second: "about 1 second", "etwa 1 Sekunde";
    about_seconds: "about {} seconds", "etwa {} Sekunden";
    about_minutes: "about {} minutes", "etwa {} Minuten";
    about_hours: "about {} hours", "etwa {} Stunden";
    about_days: "about {} days", "etwa {} Tage";
    about_years: "about {} years", "etwa {} Jahre";
    above_a_million_years: "more than a million years", "mehr als eine Million Jahre";
    recovery_file: "File for the recovery key, to print", "Datei für den Wiederherstellungsschlüssel, zum Ausdrucken";
    recovery_optional: "Leave this empty for no recovery key.", "Leer lassen, wenn keiner angelegt werden soll.";
    file_system: "File system", "Dateisystem";
    create: "Create volume", "Datenträger anlegen";
    review_title: "This will be created", "Das wird angelegt";
    review_explanation: "Nothing is written before you press the button.", "Bis zum Druck auf den Knopf wird nichts geschrieben.";
    creating: "Creating", "Wird angelegt";
    created: "Volume created.", "Datenträger angelegt.";
    created_next: "To put files in it, open it in the list.", "Um Dateien hineinzulegen, ihn in der Liste öffnen.";
    recovery_title: "Recovery key", "Wiederherstellungsschlüssel";
    qr_code: "QR code of the recovery key", "QR-Code des Wiederherstellungsschlüssels";
    print_recovery: "It opens the volume without the password. Print it or write it down, keep it away from the volume, and delete its file.", "Er öffnet den Datenträger ohne Passwort. Drucken oder abschreiben, getrennt vom Datenträger aufbewahren und die Datei löschen.";
    usual: "default", "Standard";
    format: "Format", "Format";
    cipher: "Cipher", "Chiffre";
    hash: "Hash", "Hash";
    key_size: "Key size, in bits", "Schlüssellänge in Bits";
    sector_size: "Sector size, in bytes", "Sektorgröße in Bytes";
    integrity: "Integrity (hmac-sha256)", "Integrität (hmac-sha256)";
    label: "Label", "Bezeichnung";
    quick: "Quick: skip filling with random data. Reveals which parts are in use.", "Schnell: nicht mit Zufallsdaten füllen. Zeigt, welche Teile benutzt sind.";
    // Changing.
    change_title: "Change a volume", "Einen Datenträger ändern";
    keyslots: "Keyslots", "Schlüsselfächer";
    keyslot: "Keyslot", "Schlüsselfach";
    what_to_change: "What do you want to change?", "Was soll geändert werden?";
    kind: "Kind", "Art";
    derivation: "Key derivation", "Schlüsselableitung";
    iterations: "iterations", "Iterationen";
    remarks: "Notes", "Hinweise";
    which_opens: "the keyslot that this password opens", "das Schlüsselfach, das dieses Passwort öffnet";
    backup_first: "Before you change anything, back up the header: without it, all data are lost.", "Vor jeder Änderung den Header sichern: ohne ihn sind alle Daten verloren.";
    change_password: "Change the password", "Passwort ändern";
    change_explanation: "The data stay as they are. The old password still opens old copies of the header.", "Die Daten bleiben, wie sie sind. Alte Kopien des Headers öffnet weiterhin das alte Passwort.";
    change: "Change", "Ändern";
    new_keyfiles: "New keyfiles", "Neue Schlüsseldateien";
    add_password: "Add a password", "Ein Passwort hinzufügen";
    add_explanation: "Each password opens the volume.", "Jedes Passwort öffnet den Datenträger.";
    add_recovery: "Add a recovery key", "Einen Wiederherstellungsschlüssel hinzufügen";
    recovery_explanation: "It opens the volume if you forget the password. It is saved in a new file that only you can read.", "Er öffnet den Datenträger, wenn das Passwort vergessen ist. Er wird in einer neuen Datei gespeichert, die nur Sie lesen können.";
    remove_password: "Remove a password", "Ein Passwort entfernen";
    remove_explanation: "The password you enter will no longer open the volume. The last one is never removed.", "Das eingegebene Passwort öffnet den Datenträger dann nicht mehr. Das letzte wird nie entfernt.";
    remove_warning: "Anyone who knows only this password loses access.", "Wer nur dieses Passwort kennt, verliert den Zugang.";
    remove_keyslot: "Remove a keyslot", "Ein Schlüsselfach entfernen";
    kill_explanation: "Enter the password of another keyslot, which stays.", "Das Passwort eines anderen Schlüsselfachs eingeben, das bleibt.";
    backup: "Back up the header", "Den Header sichern";
    backup_explanation: "Without its header the volume is lost. Today's password will always open the backup, so keep it as safe as the volume.", "Ohne seinen Header ist der Datenträger verloren. Das heutige Passwort öffnet die Sicherung für immer: so sicher aufbewahren wie den Datenträger.";
    backup_file: "Header backup file", "Datei für die Header-Sicherung";
    save: "Back up", "Sichern";
    restore: "Restore the header", "Den Header wiederherstellen";
    restore_explanation: "Enter the password that was valid when the backup was made.", "Das Passwort eingeben, das beim Sichern galt.";
    restore_button: "Restore", "Wiederherstellen";
    restore_warning: "This replaces the current header.", "Der jetzige Header wird ersetzt.";
    convert: "Copy into a new volume", "In einen neuen Datenträger kopieren";
    convert_explanation: "All data are copied into a new volume and compared. The old volume is only read.", "Alle Daten werden in einen neuen Datenträger kopiert und verglichen. Der alte wird nur gelesen.";
    convert_button: "Copy", "Kopieren";
    go_on_converting: "Resume copying", "Kopieren fortsetzen";
    go_on_title: "Resume an interrupted operation", "Einen unterbrochenen Vorgang fortsetzen";
    reencrypt: "Reencrypt in place", "An Ort und Stelle neu verschlüsseln";
    reencrypt_explanation: "The volume gets a new key. You can interrupt this at any time and resume later.", "Der Datenträger bekommt einen neuen Schlüssel. Das lässt sich jederzeit unterbrechen und später fortsetzen.";
    reencrypt_warning: "All other passwords will be removed. Back up your data first.", "Alle anderen Passwörter werden entfernt. Vorher die Daten sichern.";
    begin: "Start", "Starten";
    hidden_title: "Create a hidden volume inside", "Ein verborgenes Volume darin anlegen";
    hidden_explanation: "It uses the free space after this volume's files. Without its password nobody can tell that it exists. Without a size it becomes as large as is safe.", "Es nutzt den freien Platz hinter den Dateien. Ohne sein Passwort kann niemand sagen, dass es existiert. Ohne Größe wird es so groß, wie es sicher ist.";
    hidden_warning: "This overwrites the free space, including any hidden volume in it.", "Das überschreibt den freien Platz und ein verborgenes Volume darin.";
    outer_password: "Password of this volume", "Passwort dieses Datenträgers";
    measure_title: "Measure", "Messen";
    // Measuring.
    measure_explanation: "How fast the ciphers run in this machine's memory: the mean of encryption and decryption.", "Wie schnell die Chiffren im Speicher dieses Rechners laufen: Mittel aus Ver- und Entschlüsseln.";
    ciphers: "Ciphers", "Chiffren";
    not_measured: "Not measured yet. This takes about ten seconds.", "Noch nicht gemessen. Das dauert etwa zehn Sekunden.";
    buffer: "Buffer", "Puffer";
    aes_instructions: "With AES instructions", "Mit AES-Befehlen";
    measure: "Measure ciphers", "Chiffren messen";
    measure_again: "Measure again", "Noch einmal messen";
    measuring: "Measuring", "Wird gemessen";
    encryption: "encryption", "Verschlüsseln";
    decryption: "decryption", "Entschlüsseln";
    lab_title: "What encryption costs your programs", "Was Verschlüsselung Ihre Programme kostet";
    lab_explanation: "The lab works on volumes with and without encryption. This takes five to ten minutes. You can interrupt it.", "Das Labor arbeitet auf Datenträgern mit und ohne Verschlüsselung. Das dauert fünf bis zehn Minuten und lässt sich unterbrechen.";
    preset: "What to measure", "Was gemessen wird";
    preset_sweep: "reads and writes by block size", "Lesen und Schreiben nach Blockgröße";
    preset_files: "encrypted folders", "verschlüsselte Ordner";
    preset_network: "volumes on a network", "Datenträger im Netz";
    lab_dir: "Folder on the disk to measure. Empty: measure in memory", "Ordner auf der zu messenden Platte. Leer: im Arbeitsspeicher messen";
    lab_out: "Folder for results and report", "Ordner für Ergebnisse und Bericht";
    facility: "Only this facility", "Nur dieses Verfahren";
    workload: "Only this workload", "Nur diese Last";
    repeats: "Passes", "Durchgänge";
    run_lab: "Run the lab", "Labor starten";
    running_lab: "The lab is measuring", "Das Labor misst";
    lab_interrupted: "Interrupted run:", "Unterbrochener Lauf:";
    open_report: "Open the report", "Bericht öffnen";
    // Choosing a file.
    choose_title: "Choose a file, folder or device", "Datei, Ordner oder Gerät auswählen";
    choose_explanation: "Click a folder to enter it, or a file to choose it.", "Ein Klick auf einen Ordner öffnet ihn, auf eine Datei wählt sie aus.";
    not_local: "The file dialog returned “{}”, which is not a file on this machine. Choose another file, or copy it here first.", "Der Dateidialog lieferte „{}“. Das ist keine Datei auf diesem Rechner. Bitte eine andere wählen oder sie vorher hierher kopieren.";
    empty_folder: "Nothing to choose in this folder.", "In diesem Ordner gibt es nichts auszuwählen.";
    nothing_there: "Nothing exists at this path.", "Unter diesem Pfad gibt es nichts.";
    path: "Path", "Pfad";
    up: "Up", "Nach oben";
    devices: "Devices", "Geräte";
    home_folder: "Home", "Persönlicher Ordner";
    take: "Choose", "Auswählen";
    // The program itself.
    help: "claviger-window: a window over claviger, for encrypted volumes

Usage: claviger-window [VOLUME]

Opens the window. If a file, folder or device is given, it shows what that is and how to open it.

Options:
  -h, --help     Print this help
  -V, --version  Print the version

Examples:
  claviger-window
  claviger-window ~/diary.hc

Language: English or German, by LANG. Without a screen, use: claviger --help",
        "claviger-window: ein Fenster für claviger und verschlüsselte Datenträger

Aufruf: claviger-window [DATENTRÄGER]

Öffnet das Fenster. Zu einer Datei, einem Ordner oder Gerät zeigt es, was es ist und wie es sich öffnen lässt.

Optionen:
  -h, --help     Diese Hilfe ausgeben
  -V, --version  Die Version ausgeben

Beispiele:
  claviger-window
  claviger-window ~/tagebuch.hc

Sprache: Deutsch oder Englisch, nach LANG. Ohne Bildschirm hilft: claviger --help";
    unknown_option: "unknown option {}", "unbekannte Option {}";
    one_path: "only one volume can be given", "es kann nur ein Datenträger angegeben werden";
    try_help: "Try: claviger-window --help", "Hilfe: claviger-window --help";
    no_window: "the window cannot be opened", "das Fenster lässt sich nicht öffnen";
    no_screen: "neither WAYLAND_DISPLAY nor DISPLAY is set", "weder WAYLAND_DISPLAY noch DISPLAY ist gesetzt";
    without_window: "Without a screen, use: claviger --help", "Ohne Bildschirm hilft: claviger --help";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_the_language() {
        assert!(std::ptr::eq(of_language("de_AT.UTF-8"), &GERMAN) && std::ptr::eq(of_language("C"), &ENGLISH));
    }
}
